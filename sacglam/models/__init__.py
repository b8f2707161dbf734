"""Actor and critic on one language model, behind the packed forward."""
