"""A trained agent over HTTP on loopback: answers as JSON, and a page on which a person plays alongside it."""
