"""Text to token ids: apart, joined, cached, and refused where it cannot be scored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast, T5Tokenizer

from sacglam.config.sections import LoraSettings, ModelConfig, PromptConfig
from sacglam.errors import ModelError
from sacglam.models import tokens
from sacglam.models.loading import BUILTIN, load_model, lora_config
from sacglam.models.packed_lm import PackedLM
from sacglam.models.tokens import QueryTokenizer, TokenisedQuery
from sacglam.prompt import Prompt, query
from sacglam.types import Observation, Query

WORDS = ("a", "b", "c", "d", "ab", "bc", "abc")


def _tokenizer(**special: str) -> PreTrainedTokenizerFast:
    """Greedy over `WORDS`, id by position; text that is none of them gives nothing; it would add <s> if it were let."""
    merges = [("a", "b"), ("b", "c"), ("ab", "c")]
    core = Tokenizer(models.BPE({word: i for i, word in enumerate((*WORDS, "<s>", "</s>"))}, merges))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    core.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 7), ("</s>", 8)])
    return PreTrainedTokenizerFast(tokenizer_object=core, **special)


class Counting:
    """A tokenizer that remembers what it was asked."""

    eos_token_id = 8

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self._inner = _tokenizer()

    def __call__(self, texts: list[str], **options: Any) -> Any:
        self.asked.append(list(texts))
        return self._inner(texts, **options)


def _counting(max_tokens: int = 99) -> tuple[QueryTokenizer, Counting]:
    counting = Counting()
    tokenise = QueryTokenizer(counting, max_tokens)  # type: ignore[arg-type]
    counting.asked.clear()  # what it tries when it is made
    return tokenise, counting


def _ids(tokenised: TokenisedQuery) -> tuple[list[int], list[list[int]]]:
    return tokenised.prompt.tolist(), [action.tolist() for action in tokenised.actions]


def _longest(tokenised: TokenisedQuery) -> int:
    return len(tokenised.prompt) + max(map(len, tokenised.actions))


def test_prompt_and_action_are_tokenised_apart_and_without_special_tokens() -> None:
    tokenizer = _tokenizer()
    assert tokenizer("abc")["input_ids"] == [7, 6, 8]  # joined, and with special tokens: what must not happen
    [got] = QueryTokenizer(tokenizer, 99)([Query("a", ("b", "bc", "bcab"))])
    assert _ids(got) == ([0], [[1], [5], [5, 4]])
    assert _longest(got) == 3
    assert all(ids.dtype == np.int64 for ids in (got.prompt, *got.actions))


def test_the_built_in_tokenizer_joins_to_its_own_reading() -> None:
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(BUILTIN)
    prompt, action = "Goal: Grasp red cat\nYou see: red cat\nAction:", " Go to red cat"
    [got] = QueryTokenizer(tokenizer, 99)([Query(prompt, (action,))])
    joined = np.concatenate([got.prompt, got.actions[0]])
    assert tokenizer.decode(joined) == prompt + action
    assert joined.tolist() == tokenizer(prompt + action, add_special_tokens=False)["input_ids"]


PIECES = ("\u2581Go", "\u2581to", "\u2581red", "\u2581cat", "\u2581Grasp", "\u2581Open", "\u2581\u2581", "Go")


def _sentencepiece(normalizer: Any = None, metaspace: str | None = None, pieces: tuple[str, ...] = PIECES) -> Any:
    """A BPE over sentencepiece's marks that knows every letter and `pieces`; spaces become \u2581 in the way given."""
    letters = sorted({*"".join(pieces), *"Goal: Grasp red cat\nYou see: Action Open door 2"} - {" "})
    vocabulary, merges = {letter: i for i, letter in enumerate(letters)}, []
    for piece in pieces:
        for end in range(2, len(piece) + 1):
            merges.append((piece[: end - 1], piece[end - 1]))
            vocabulary.setdefault(piece[:end], len(vocabulary))
    core = Tokenizer(models.BPE(vocabulary, list(dict.fromkeys(merges))))
    if normalizer is not None:
        core.normalizer = normalizer
    if metaspace is not None:
        core.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=metaspace, split=False)
    return PreTrainedTokenizerFast(tokenizer_object=core)


LLAMA_2 = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])


@pytest.mark.parametrize(
    "tokenizer",
    [
        pytest.param(_sentencepiece(LLAMA_2), id="Llama 2"),
        pytest.param(_sentencepiece(normalizers.Replace(" ", "\u2581")), id="Gemma"),
        *(pytest.param(_sentencepiece(metaspace=scheme), id=scheme) for scheme in ("always", "first", "never")),
        pytest.param(AutoTokenizer.from_pretrained(BUILTIN), id="byte-level"),
    ],
)
def test_an_action_has_the_tokens_that_it_has_in_one_text_with_its_prompt(tokenizer: Any) -> None:
    seen = query("Go to red cat", Observation("red cat", ("Go to red cat", "Grasp", "Open red door")))
    [got] = QueryTokenizer(tokenizer, 99)([seen])
    for action, ids in zip(seen.actions, got.actions, strict=True):
        together = tokenizer(seen.prompt + action, add_special_tokens=False)["input_ids"]
        assert [*got.prompt, *ids] == together


def test_a_tokenizer_that_joins_prompt_and_action_is_refused() -> None:
    with pytest.raises(
        ModelError,
        match="of prompt and action: 'Action: Go to red cat' is not 'Action:' and",
    ):
        QueryTokenizer(_sentencepiece(normalizers.Replace(" ", "\u2581"), pieces=(":\u2581Go",)), 99)


def test_score_eos_ends_every_action() -> None:
    tokenizer = _tokenizer(eos_token="</s>")
    [got] = QueryTokenizer(tokenizer, 99, score_eos=True)([Query("abc", ("a", "ab c"))])
    assert _ids(got) == ([6], [[0, 8], [4, 2, 8]])
    [again] = QueryTokenizer(tokenizer, 99, score_eos=False)([Query("abc", ("a", "ab c"))])
    assert _ids(again) == ([6], [[0], [4, 2]])


def test_prompt_eos_ends_every_prompt_and_counts_towards_the_length() -> None:
    tokenizer = _tokenizer(eos_token="</s>")
    [got] = QueryTokenizer(tokenizer, 4, prompt_eos=True)([Query("a b", ("c",))])
    assert _ids(got) == ([0, 1, 8], [[2]])
    with pytest.raises(ModelError, match=r"got 4 \(prompt 3\)"):
        QueryTokenizer(tokenizer, 3, prompt_eos=True)([Query("a b", ("c",))])
    with pytest.raises(ModelError, match="prompt ends in an end-of-sequence token, and this tokenizer has none"):
        QueryTokenizer(_tokenizer(), 99, prompt_eos=True)


def test_a_t5_tokenizer_reads_an_action_the_same_with_and_without_its_leading_space() -> None:
    pieces = [
        "<pad>",
        "</s>",
        "<unk>",
        "\u2581",
        "\u2581Go",
        "\u2581to",
        "\u2581cat",
        "G",
        "o",
        "t",
        "c",
        "a",
        ":",
        "Action",
    ]
    tokenizer = T5Tokenizer(vocab=[(piece, -float(place)) for place, piece in enumerate(pieces)], extra_ids=0)
    [got] = QueryTokenizer(tokenizer, 99, prompt_eos=True)([Query("Go\nAction:", (" Go to cat", "Go to cat"))])
    spaced, plain = got.actions
    assert spaced.tolist() == plain.tolist() == [4, 5, 6]
    assert got.prompt.tolist() == [4, 3, 13, 12, 1]  # T5 reads a line break as a space


def test_score_eos_counts_towards_the_length() -> None:
    tokenizer = _tokenizer(eos_token="</s>")
    query = Query("a b", ("c",))
    assert _longest(QueryTokenizer(tokenizer, 4, score_eos=True)([query])[0]) == 4
    with pytest.raises(ModelError, match="got 4"):
        QueryTokenizer(tokenizer, 3, score_eos=True)([query])


def test_score_eos_without_such_a_token_is_refused() -> None:
    with pytest.raises(ModelError, match="score_eos needs an end-of-sequence token"):
        QueryTokenizer(_tokenizer(), 99, score_eos=True)


@pytest.mark.parametrize("action", ["", " "])
def test_an_action_of_no_tokens_is_refused(action: str) -> None:
    with pytest.raises(ModelError, match="expected prompt and actions of at least one token") as caught:
        QueryTokenizer(_tokenizer(eos_token="</s>"), 99, score_eos=True)([Query("a", ("b", action))])
    assert repr(action) in str(caught.value)


def test_a_prompt_of_no_tokens_is_refused() -> None:
    with pytest.raises(ModelError, match="got none for ' '"):
        QueryTokenizer(_tokenizer(), 99)([Query(" ", ("a",))])


def test_the_longest_action_decides_whether_a_query_fits() -> None:
    query = Query("a b c", ("a", "a b", "b"))
    assert _longest(QueryTokenizer(_tokenizer(), 5)([query])[0]) == 5
    with pytest.raises(ModelError, match=r"within the model's 4 tokens, got 5 \(prompt 3\)") as caught:
        QueryTokenizer(_tokenizer(), 4)([query])
    assert "'a b c'" in str(caught.value)


def _asked(counting: Counting) -> list[Sequence[str]]:
    return [list(texts) for texts in counting.asked]


def test_each_text_is_tokenised_once() -> None:
    tokenise, counting = _counting()
    first = tokenise([Query("a", ("b", "c")), Query("a", ("c", "d"))])
    again = tokenise([Query("b", ("a", "c"))])
    assert _asked(counting) == [["a", "b", "c", "d"]]
    assert [_ids(q) for q in first] == [([0], [[1], [2]]), ([0], [[2], [3]])]
    assert _ids(again[0]) == ([1], [[0], [2]])
    tokenise([Query("a", ("ab", "b"))])
    assert _asked(counting) == [["a", "b", "c", "d"], ["ab"]]


def test_a_full_cache_is_emptied_and_stays_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "_CACHED_TEXTS", 3)
    tokenise, counting = _counting()
    assert _ids(tokenise([Query("a", ("b", "c"))])[0]) == ([0], [[1], [2]])
    # "ab" does not fit next to the three: they are dropped, and those needed again are tokenised again.
    assert _ids(tokenise([Query("a", ("ab", "c"))])[0]) == ([0], [[4], [2]])
    assert _asked(counting) == [["a", "b", "c"], ["a", "ab", "c"]]
    assert _ids(tokenise([Query("a", ("ab", "c"))])[0]) == ([0], [[4], [2]])
    assert len(counting.asked) == 2
    # One call may bring more than the cache should hold.
    assert _ids(tokenise([Query("a", ("b", "c", "d", "bc"))])[0]) == ([0], [[1], [2], [3], [5]])
    # What was dropped is tokenised again.
    tokenise([Query("a", ("ab",))])
    assert _asked(counting)[2:] == [["a", "b", "bc", "c", "d"], ["a", "ab"]]


CHAT = PromptConfig(template="{history}{observation}\nActions: {actions}\nGoal: {goal}", history=2, chat=True)
TEMPLATE = "{% for m in messages %}<|end|>{{ m.role }}\n{{ m.content | trim }}{% endfor %}<|end|>assistant{{ '\n' }}"


def test_a_chat_template_goes_around_the_prompt() -> None:
    tokenizer = AutoTokenizer.from_pretrained(BUILTIN)
    state = Observation("You see: red cat", ("Grasp", "Go to red cat"))
    prompt = Prompt(CHAT)
    with pytest.raises(ModelError, match=r"prompt.chat needs a chat template, and this tokenizer's cannot be used: "):
        QueryTokenizer(tokenizer, 999, prompt=prompt)
    tokenizer.chat_template = TEMPLATE
    asked = prompt("Grasp any cat", state, (("You see: water", "Go to water"),))
    [got] = QueryTokenizer(tokenizer, 999, prompt=prompt)([asked])
    text = f"<|end|>user\n{asked.prompt}<|end|>assistant\n"
    assert got.prompt.tolist() == tokenizer(text, add_special_tokens=False)["input_ids"]
    assert got.prompt[0] == tokenizer.eos_token_id, "special tokens of a chat are tokens, and not their letters"
    assert [tokenizer.decode(ids) for ids in got.actions] == ["Grasp", "Go to red cat"]
    tokenizer.chat_template = "{{ raise_exception('only a system may speak') }}"
    with pytest.raises(ModelError, match="only a system may speak"):
        QueryTokenizer(tokenizer, 999, prompt=prompt)


@torch.no_grad()
def test_packed_scores_with_chat_and_history_equal_separate_sequences() -> None:
    settings = ModelConfig(lora=LoraSettings(rank=2))
    loaded = load_model(settings, torch.device("cpu"))
    loaded.tokenizer.chat_template = TEMPLATE
    prompt = Prompt(CHAT)
    tokenise = QueryTokenizer(loaded.tokenizer, loaded.max_tokens, prompt=prompt)
    past = (("You see: red cat, water", "Go to water"), ("You are on: water", "Grasp"))
    state = Observation("You see: red cat", ("Grasp", "Go to red cat", "Release water"))
    tokenised = tokenise([prompt("Grow any cat", state, past[:n]) for n in range(3)])
    assert len({len(q.prompt) for q in tokenised}) == 3
    expected = []
    for q in tokenised:
        for action in q.actions:
            ids = torch.tensor([*q.prompt, *action])[None]
            log_p = loaded.model(input_ids=ids).logits[0].log_softmax(-1)
            places = range(len(q.prompt), ids.shape[1])
            expected.append(sum(float(log_p[i - 1, ids[0, i]]) for i in places))
    lm = PackedLM(loaded.model, lora_config(settings, loaded.config), ["default"])
    found = lm.forward(lm.pack(tokenised)).log_probs_BA
    torch.testing.assert_close(found.flatten(), torch.tensor(expected), atol=1e-4, rtol=0)
