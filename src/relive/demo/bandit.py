"""What can be learnt from the same rewards without an LLM: a bandit that counts words.

For each action it counts how often each word was in a message for which the action was right, and for which it was
wrong, and prefers the action whose right messages are most like the present one: naive Bayes, right against wrong. It
explores with the same probability as the agent it is compared with.
"""

import math
import re
from collections import Counter

import numpy as np

_WORD = re.compile(r"[\w']+")
_RIGHT, _WRONG = (0.2, 1.0), (0.5, 2.5)  # added to a word's count and to the messages', for right and wrong messages
_PRIOR = 8.0


class WordCountBandit:
    """Chooses among actions by the words of a message; told only whether its choice was right.

    Args:
        actions: What can be chosen.
        exploration: Probability of a random action.
        seed: Seed of the draws; those of a step depend on the seed and the step's number only.
    """

    def __init__(self, actions: tuple[str, ...], exploration: float, seed: int) -> None:
        self._actions = actions
        self._exploration = exploration
        self._seed = seed
        self._words = {(action, right): Counter[str]() for action in actions for right in (True, False)}
        self._messages = Counter[tuple[str, bool]]()

    def choose(self, text: str, step: int) -> tuple[str, bool]:
        """The action for a message, and whether it was tried out instead of preferred."""
        rng = np.random.default_rng([self._seed, step])
        if rng.random() < self._exploration:
            return self._actions[rng.integers(len(self._actions))], True
        return self.preferred(text, rng), False

    def preferred(self, text: str, rng: np.random.Generator) -> str:
        """The action that is best by what was learnt so far; equally good ones by `rng`."""
        scores = [self._score(action, _words(text)) for action in self._actions]
        best = [action for action, score in zip(self._actions, scores, strict=True) if score == max(scores)]
        return best[rng.integers(len(best))]

    def learn(self, text: str, action: str, right: bool) -> None:
        """Takes in the reward of a choice."""
        self._words[action, right].update(_words(text))
        self._messages[action, right] += 1

    def _score(self, action: str, words: list[str]) -> float:
        right, wrong = self._messages[action, True], self._messages[action, False]
        score = math.log(right + 0.5) - math.log(right + wrong + _PRIOR)
        for word in words:
            score += math.log((self._words[action, True][word] + _RIGHT[0]) / (right + _RIGHT[1]))
            score -= math.log((self._words[action, False][word] + _WRONG[0]) / (wrong + _WRONG[1]))
        return score


def _words(text: str) -> list[str]:
    """The different words of a text, in an order that is the same in every process: sums of floats depend on it."""
    return sorted(set(_WORD.findall(text.lower())))
