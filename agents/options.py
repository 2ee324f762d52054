"""What a job may be told about measuring the network, about its other paths and about its policies.

A segment of a job, or the job for all its segments, may name each; an experiment file does with the same
words. Defaults are the published ones (NetStorm's launch scripts) where the published system has the
parameter.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Estimator = Literal["off", "published", "unbiased"]
Replanning = Literal["change", "gain"]
Prior = Literal["declared", "published"]
Rule = Literal["off", "threshold", "capacity", "random"]
Switching = Literal["barrier", "announced", "within"]
Failures = Literal["replan", "keep"]


def _one_word(value: Any, key: str) -> Any:
    """`awareness: unbiased` stands for `awareness: {estimator: unbiased}`.

    YAML reads the plain word `off` as false.
    """
    if value is False:
        value = "off"
    if isinstance(value, str):
        return {key: value}
    if isinstance(value, dict) and value.get(key) is False:
        return {**value, key: "off"}
    return value


class AwarenessOptions(BaseModel):
    """How links are measured while a job runs, and when it is planned anew.

    Attributes:
        estimator: `off` plans with the declared rates, once a segment; `published` times messages one way;
            `unbiased` times what lies between two arrivals of a busy period.
        prior: bit/s of links that nobody has measured: the declared ones, or the random ones of the published
            scheduler.
        replan: `change`: when the mean relative change is above `update_rate`; `gain`: when the new plan also
            promises `min_gain` more. None stands for what goes with the estimator: published, change;
            unbiased, gain.
        check_period_s: CHECK_PERIOD, seconds between two looks at the measured rates.
        update_rate: UPDATE_RATE.
        min_gain: of the predicted rate, relative.
        report_rate: REPORT_RATE, the relative change of an estimate that a site reports.
        window: NUM_MSG_REPORT, messages in one estimate.
        min_message_bytes: SIZE_MSG_REPORT, smaller messages are not timed (`published` only).
        report_every_s: a site sends at most one report in this time, with all that is new.
        decay_s: time constant by which an old estimate goes back to the prior (`unbiased` only).
        probe_idle_s: a link on which a site has sent nothing for so long is probed (`unbiased` only); 0:
            never.
        probe_bytes: of one probe.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    estimator: Estimator = "off"
    prior: Prior = "declared"
    replan: Replanning | None = None
    check_period_s: float = Field(default=5.0, gt=0, le=3600)
    update_rate: float = Field(default=0.0, ge=0)
    min_gain: float = Field(default=0.1, ge=0)
    report_rate: float = Field(default=0.0, ge=0)
    window: int = Field(default=4, ge=1, le=1000)
    min_message_bytes: int = Field(default=2_000_000, ge=1)
    report_every_s: float = Field(default=0.25, ge=0.01, le=60)
    decay_s: float = Field(default=60.0, gt=0)
    probe_idle_s: float = Field(default=10.0, ge=0)
    probe_bytes: int = Field(default=262_144, ge=1024, le=8_388_608)

    @model_validator(mode="before")
    @classmethod
    def _word(cls, value: Any) -> Any:
        return _one_word(value, "estimator")

    @property
    def on(self) -> bool:
        return self.estimator != "off"

    @property
    def replanning(self) -> Replanning:
        """`replan`, or what goes with the estimator."""
        return self.replan or ("gain" if self.estimator == "unbiased" else "change")


class AuxiliaryOptions(BaseModel):
    """Whether a chunk may take another path than its hop's own.

    Attributes:
        rule: `off`; `threshold`: when more than 2 `limit` chunks wait where the own path begins and fewer
            than `limit` where the other one does (published); `capacity`: besides, only paths whose links
            have `spare_ratio` of their measured rate to spare under the plan in force; `random`: every
            chunk takes any path of its pair, drawn by the segment's seed, to test and to compare with.
        limit: L, SECOND_QUEUE_LIMIT; the published scripts' names for the two bounds go with 1.
        spare_ratio: what must be left of every link of the other path.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    rule: Rule = "off"
    limit: int = Field(default=1, ge=1, le=1_000_000)
    spare_ratio: float = Field(default=0.25, ge=0, le=1)

    @model_validator(mode="before")
    @classmethod
    def _word(cls, value: Any) -> Any:
        return _one_word(value, "rule")

    @property
    def on(self) -> bool:
        return self.rule != "off"


class PolicyOptions(BaseModel):
    """How a new policy comes into force, and what besides measured rates is a reason for one.

    Attributes:
        switch: `barrier`: the coordinator releases every collective when all sites are ready for it, and a new
            policy holds from the next release on (published); `announced`: policies are settled `ahead`
            collectives before the slowest site, and sites begin by themselves; `within`: as `barrier`, and
            besides at once for those chunks of the collective under way that no site has begun, which are
            known where the plan limits the run-ahead (`packing`).
        ahead: how many collectives a site may begin on its own (`announced` only).
        every: plan anew after so many collectives, whatever the rates; 0: never.
        failures: when a link fails or returns, `replan` without and with it, or `keep` the plan.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    switch: Switching = "barrier"
    ahead: int = Field(default=2, ge=1, le=1000)
    every: int = Field(default=0, ge=0, le=1_000_000)
    failures: Failures = "replan"

    @model_validator(mode="before")
    @classmethod
    def _word(cls, value: Any) -> Any:
        return _one_word(value, "switch")

    @property
    def announced(self) -> int:
        """Collectives that are settled ahead; 0 with the barrier."""
        return self.ahead if self.switch == "announced" else 0
