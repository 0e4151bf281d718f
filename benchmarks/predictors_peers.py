"""A peer of the shipped predictor: gradient-boosted trees of scikit-learn on the same features, retrained in time."""

from __future__ import annotations

from typing import Any

from benchmarks.predictors_data import Observation
from egs_core.predict import Features, Signature

EVERY = 500  # observations between two trainings


class Boosted:
    """One model for each quantile, trained on everything seen so far; words are numbered as they come."""

    def __init__(self) -> None:
        self._rows: list[list[float]] = []
        self._seconds: list[float] = []
        self._words: dict[tuple[int, str], int] = {}
        self._models: list[Any] = []
        self._columns: list[int] = []  # those that differ between observations

    def predict(self, observation: Observation) -> tuple[float, float, float]:
        if not self._models:
            return 0.0, 0.0, 0.0
        whole = self._row(observation.signature, observation.features)
        row = [[whole[column] for column in self._columns]]
        p50, p90, p95 = (float(model.predict(row)[0]) for model in self._models)
        return p50, p90, p95

    def learn(self, observation: Observation) -> None:
        self._rows.append(self._row(observation.signature, observation.features))
        self._seconds.append(observation.seconds)
        if len(self._rows) == 100 or len(self._rows) % EVERY == 0:
            self._train()

    def _row(self, signature: Signature, features: Features) -> list[float]:
        words = [f"{signature.task} {signature.shape}", features.run, *features.labels]
        codes = [self._words.setdefault((at, word), len(self._words)) for at, word in enumerate(words)]
        numbers = (features.input_bytes, *features.numbers)
        return [*map(float, codes), *(max(number, -1.0) for number in numbers)]

    def _train(self) -> None:
        from sklearn.ensemble import HistGradientBoostingRegressor

        self._columns = [at for at, values in enumerate(zip(*self._rows, strict=True)) if len(set(values)) > 1]
        rows = [[row[column] for column in self._columns] for row in self._rows]
        self._models = []
        for level in (0.5, 0.9, 0.95):
            model = HistGradientBoostingRegressor(loss="quantile", quantile=level, min_samples_leaf=10)
            self._models.append(model.fit(rows, self._seconds))
