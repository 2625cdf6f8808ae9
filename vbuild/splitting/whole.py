"""All that a split makes of the wheels given: what each requires, the wheels beside them, and what is to be written.

batches -> what dependency wheels are made of -> their versions -> requirements, the same in a release -> outputs
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from vbuild.splitting.agreement import agreed, versions
from vbuild.splitting.batch import Batch
from vbuild.splitting.bundle import Bundle
from vbuild.splitting.companion import Companion
from vbuild.splitting.output import Output, beside, thin
from vbuild.splitting.preloading import Preloading
from vbuild.splitting.sharing import Pool
from vbuild.wheel.archive import Wheel
from vbuild.wheel.press import Codec


@dataclass(frozen=True, eq=False)
class Whole:
    """The *batches* of all machines together; *codec* deflates what is new."""

    batches: tuple[Batch, ...]
    codec: Codec

    @cached_property
    def companions(self) -> Mapping[Pool, Companion]:
        """The dependency wheel of each pool."""
        libs = {pool: batch.libs(pool, self.codec) for batch in self.batches for pool in batch.plan.decision.pools}
        numbers = versions(libs)
        return {pool: one.wheel(numbers[pool]) for pool, one in libs.items()}

    @cached_property
    def preloads(self) -> Mapping[Bundle, Preloading]:
        """The preload modules of each wheel."""
        return {
            bundle: batch.preloading(bundle, self._companion(batch, bundle))
            for batch in self.batches
            for bundle in batch.bundles
        }

    @cached_property
    def _agreed(self) -> tuple[Mapping[Bundle, tuple[str, ...]], Mapping[Bundle, str]]:
        own = {
            bundle: (*batch.requires(bundle, self._companion(batch, bundle)), *self.preloads[bundle].requires)
            for batch in self.batches
            for bundle in batch.bundles
        }
        return agreed(own)

    def _companion(self, batch: Batch, bundle: Bundle) -> Companion | None:
        pool = batch.plan.decision.pool_of(bundle)
        return self.companions[pool] if pool else None

    def requires(self, bundle: Bundle) -> tuple[str, ...]:
        """The lines that METADATA of *bundle* gets."""
        return self._agreed[0][bundle]

    @cached_property
    def thin(self) -> Mapping[Bundle, Output | None]:
        """What is to be written of each wheel; None where it passes as it is."""
        return {bundle: self._thin(batch, bundle) for batch in self.batches for bundle in batch.bundles}

    def _thin(self, batch: Batch, bundle: Bundle) -> Output | None:
        moved = (each.members for each in batch.developments if bundle.wheel in each.wheels)
        return thin(
            bundle,
            batch.plan,
            requires=self.requires(bundle),
            companion=self._companion(batch, bundle),
            gone={member.path for members in moved for member in members},
            news=self.preloads[bundle].files,
            bill=batch.request.bill,
        )

    @cached_property
    def beside(self) -> Mapping[Pool, Output]:
        """The dependency wheels to be written."""
        return {
            pool: beside(self.companions[pool], batch.plan.moving[pool])
            for batch in self.batches
            for pool in batch.plan.decision.pools
        }

    @property
    def outputs(self) -> Iterator[Output]:
        """All wheels to be written."""
        yield from (output for output in self.thin.values() if output)
        yield from self.beside.values()
        yield from (development.output for batch in self.batches for development in batch.developments)

    @property
    def passing(self) -> tuple[Wheel, ...]:
        """The wheels that pass as they are."""
        return tuple(bundle.wheel for bundle, output in self.thin.items() if output is None)

    def warnings(self, batch: Batch, bundle: Bundle) -> Iterator[str]:
        """What whoever publishes the wheel of *bundle* should know."""
        yield from batch.warnings(bundle)
        yield from self.preloads[bundle].warnings
        if warning := self._agreed[1].get(bundle):
            yield warning
