"""What will arrive when a replica that is added now is there: rates, lengths, trends.

    level    of the window; of its last third, if that differs by more than chance
    trend    of the window, if both of its halves rise: a ramp goes on, a step is over
    open     requests that replicas have: so many lately; if each third of the window had more and
             few have ended, they go on growing

Arrivals scatter as Poisson's numbers do, so what n of them show is known to sqrt(n).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

from baton.platform.planner.capacity import Load
from baton.platform.planner.observation import Observation

SURE = 2.0
"""Standard deviations from which on a difference is none of chance."""
LEAST_OF_PART = 3
"""Observations of a half, or a third, that a trend is estimated from."""
MOST_GROWTH = 2.0
"""Times the level that a trend may reach."""
ENOUGH_ENDED = 10
"""Answers that show how long they are; of fewer, the first to end are the shortest."""
ENOUGH_OF_ALL = 0.5
"""Least share of the requests that came that must have ended for that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    now: Load
    ahead: Load
    per_minute: float
    """Growth of the request rate, in requests a second per minute, as far as it is significant; 0
    for a rate that falls."""
    num_open: float
    """Requests that replicas will have then, if those they have now go on: by no length of answers,
    as the longest are the last to show theirs."""


def forecast(observations: Sequence[Observation], horizon_s: float) -> Forecast:
    """At least one observation. Lengths are those of the window."""
    rate = _level(observations)
    slope = _slope(observations)
    ahead = min(rate + slope * horizon_s, MOST_GROWTH * rate)
    lengths = _lengths(observations)
    return Forecast(
        now=Load(rate=rate, **lengths),
        ahead=Load(rate=ahead, **lengths),
        per_minute=60 * slope,
        num_open=_open_ahead(observations, horizon_s),
    )


def _rate(observations: Sequence[Observation]) -> float:
    lasted_s = sum(one.lasted_s for one in observations)
    return sum(one.num_arrived for one in observations) / lasted_s if lasted_s else 0.0


def _late(observations: Sequence[Observation]) -> Sequence[Observation]:
    return observations[-max(len(observations) // 3, 1) :]


def _level(observations: Sequence[Observation]) -> float:
    late = _late(observations)
    whole, lately = _rate(observations), _rate(late)
    lasted_s = sum(one.lasted_s for one in late)
    chance = SURE * sqrt(max(whole, lately) / lasted_s) if lasted_s else 0.0
    return lately if abs(lately - whole) > chance else whole


def _slope(observations: Sequence[Observation]) -> float:
    """Requests a second, a second: the flattest of the window and its halves, so that of a step,
    which is in one of them, nothing is left; 0 of what falls, or may be chance."""
    half = len(observations) // 2
    if half < LEAST_OF_PART or not _is_sure(observations):
        return 0.0
    parts = (observations, observations[:half], observations[half:])
    return max(min(_fitted_slope(part) for part in parts), 0.0)


def _fitted_slope(observations: Sequence[Observation]) -> float:
    times = [one.at_s - one.lasted_s / 2 for one in observations]
    rates = [one.num_arrived / one.lasted_s for one in observations]
    mean_s, mean_rate = sum(times) / len(times), sum(rates) / len(rates)
    spread = sum((time - mean_s) ** 2 for time in times)
    pairs = zip(times, rates, strict=True)
    return sum((time - mean_s) * (rate - mean_rate) for time, rate in pairs) / spread


def _is_sure(observations: Sequence[Observation]) -> bool:
    times = [one.at_s for one in observations]
    mean_s = sum(times) / len(times)
    spread = sum((time - mean_s) ** 2 for time in times)
    period_s = sum(one.lasted_s for one in observations) / len(observations)
    deviation = sqrt(max(_rate(observations), 1e-9) / period_s / spread)
    return abs(_fitted_slope(observations)) > SURE * deviation


def _open_ahead(observations: Sequence[Observation], horizon_s: float) -> float:
    third = len(observations) // 3
    if third < LEAST_OF_PART:
        return _mean_open(_late(observations))
    parts = (observations[:third], observations[third:-third], observations[-third:])
    first, middle, last = map(_mean_open, parts)
    growth = min(middle - first, last - middle)
    if growth <= 0 or last - first <= SURE * sqrt(first + last) or _tells_lengths(observations):
        return last
    third_s = (observations[-1].at_s - observations[0].at_s) / 3
    return min(last + growth * horizon_s / third_s, MOST_GROWTH * last)


def _tells_lengths(observations: Sequence[Observation]) -> bool:
    """Whether most answers are over in a window: then those that ended stand for all."""
    num_ended = sum(one.num_ended for one in observations)
    return num_ended >= ENOUGH_OF_ALL * sum(one.num_arrived for one in observations)


def _mean_open(observations: Sequence[Observation]) -> float:
    return sum(one.num_open for one in observations) / len(observations)


def _lengths(observations: Sequence[Observation]) -> dict[str, float]:
    num_arrived = sum(one.num_arrived for one in observations)
    num_ended = sum(one.num_ended for one in observations)
    prompt = sum(one.prompt_tokens for one in observations) / max(num_arrived, 1)
    squared = sum(one.squared_prompt_tokens for one in observations) / max(num_arrived, 1)
    cached = sum(one.cached_tokens for one in observations) / max(num_arrived, 1)
    output = sum(one.output_tokens for one in observations) / max(num_ended, 1)
    num_open = observations[-1].num_open + observations[-1].num_for_decode
    return {
        "prompt_tokens": max(prompt, 1.0),
        "cached_tokens": cached,
        "output_tokens": max(output, 1.0),
        "num_open": num_open if num_ended < min(ENOUGH_ENDED, num_open) else 0.0,
        "prompt_cv2": max(squared / prompt**2 - 1, 0.0) if prompt else 0.0,
    }
