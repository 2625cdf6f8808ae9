"""Build wheels as families of hardware variants, and repackage, check and publish the ones that exist.

    import vbuild
    vbuild.slim("torch-2.9-cp313-cp313-linux_x86_64.whl", gpus=["sm_90"], output_dir="out")

Commands are functions here. Functions, options and results are imported when they are used: ``import vbuild``
itself runs without anything but the interpreter.
"""

__version__ = "0.1.0"

# what is installed: on the package index, the name of the command and of the import is another project's
DISTRIBUTION = "vbuild-wheels"

TYPE_CHECKING = False  # true to type checkers; importing typing would cost more than this module
if TYPE_CHECKING:
    from vbuild.api.building import cibuildwheel as cibuildwheel
    from vbuild.api.building import collect as collect
    from vbuild.api.building import init as init
    from vbuild.api.building import lock as lock
    from vbuild.api.building import lock_machines as lock_machines
    from vbuild.api.building import matrix as matrix
    from vbuild.api.looking import bench as bench
    from vbuild.api.looking import doctor as doctor
    from vbuild.api.looking import inspect as inspect
    from vbuild.api.looking import run_levels as run_levels
    from vbuild.api.looking import select as select
    from vbuild.api.looking import select_image as select_image
    from vbuild.api.looking import verify as verify
    from vbuild.api.repackaging import install_check as install_check
    from vbuild.api.repackaging import repair as repair
    from vbuild.api.repackaging import slim as slim
    from vbuild.api.repackaging import slim_environment as slim_environment
    from vbuild.api.repackaging import slim_images as slim_images
    from vbuild.api.repackaging import split as split
    from vbuild.api.repackaging import stamp as stamp
    from vbuild.api.repackaging import undo_slim as undo_slim
    from vbuild.api.shipping import check as check
    from vbuild.api.shipping import index as index
    from vbuild.api.shipping import index_channel as index_channel
    from vbuild.api.shipping import mirror as mirror
    from vbuild.api.shipping import publish as publish
    from vbuild.api.shipping import verify_mirror as verify_mirror
    from vbuild.build.init import WrittenRecipe as WrittenRecipe
    from vbuild.build.repair import Portable as Portable
    from vbuild.errors import BinaryError as BinaryError
    from vbuild.errors import BuildError as BuildError
    from vbuild.errors import FetchError as FetchError
    from vbuild.errors import HardwareError as HardwareError
    from vbuild.errors import RecipeError as RecipeError
    from vbuild.errors import RepackageError as RepackageError
    from vbuild.errors import VariantError as VariantError
    from vbuild.errors import VbuildError as VbuildError
    from vbuild.errors import WheelError as WheelError
    from vbuild.hardware.machine import Machine as Machine
    from vbuild.inspection.doctor import Checkup as Checkup
    from vbuild.inspection.model import Contents as Contents
    from vbuild.mirroring.check import MirrorCheck as MirrorCheck
    from vbuild.mirroring.mirror import Mirrored as Mirrored
    from vbuild.publishing.check import Checklist as Checklist
    from vbuild.publishing.conda.channel import IndexedSubdir as IndexedSubdir
    from vbuild.publishing.oci.select import ImageSelection as ImageSelection
    from vbuild.publishing.oci.slimming import SlimmedImage as SlimmedImage
    from vbuild.publishing.publish import PublishedLayout as PublishedLayout
    from vbuild.release.lock import MachineLock as MachineLock
    from vbuild.release.lock import WrittenLock as WrittenLock
    from vbuild.release.model import ReleaseResult as ReleaseResult
    from vbuild.slimming.in_place import Undone as Undone
    from vbuild.slimming.results import Slimmed as Slimmed
    from vbuild.slimming.results import SlimmedEnvironment as SlimmedEnvironment
    from vbuild.splitting.results import Split as Split
    from vbuild.variants.doctor import Diagnosis as Diagnosis
    from vbuild.variants.index import Indexed as Indexed
    from vbuild.variants.select import Selection as Selection
    from vbuild.verification.bench import BenchReport as BenchReport
    from vbuild.verification.install_check import InstallCheck as InstallCheck
    from vbuild.verification.level_emulation import LevelReport as LevelReport
    from vbuild.verification.model import Verdict as Verdict

# the public names of each module, as above
_NAMES = {
    "api.building": "matrix init lock lock_machines cibuildwheel collect",
    "api.repackaging": "slim slim_environment slim_images undo_slim split install_check stamp repair",
    "api.looking": "select select_image doctor verify run_levels bench inspect",
    "api.shipping": "index index_channel publish check mirror verify_mirror",
    "build.init": "WrittenRecipe",
    "build.repair": "Portable",
    "errors": "VbuildError RecipeError HardwareError BinaryError WheelError VariantError FetchError BuildError "
    "RepackageError",
    "hardware.machine": "Machine",
    "inspection.doctor": "Checkup",
    "inspection.model": "Contents",
    "mirroring.check": "MirrorCheck",
    "mirroring.mirror": "Mirrored",
    "publishing.check": "Checklist",
    "publishing.conda.channel": "IndexedSubdir",
    "publishing.oci.select": "ImageSelection",
    "publishing.oci.slimming": "SlimmedImage",
    "publishing.publish": "PublishedLayout",
    "release.lock": "WrittenLock MachineLock",
    "release.model": "ReleaseResult",
    "slimming.in_place": "Undone",
    "slimming.results": "Slimmed SlimmedEnvironment",
    "splitting.results": "Split",
    "variants.doctor": "Diagnosis",
    "variants.index": "Indexed",
    "variants.select": "Selection",
    "verification.install_check": "InstallCheck",
    "verification.level_emulation": "LevelReport",
    "verification.bench": "BenchReport",
    "verification.model": "Verdict",
}
_PLACES = {name: module for module, names in _NAMES.items() for name in names.split()}
__all__ = ["DISTRIBUTION", "__version__", *_PLACES]  # noqa: PLE0604 - names, all of them


if not TYPE_CHECKING:  # a type checker would take every name for one of ours

    def __getattr__(name: str) -> object:
        """The function, option or result called *name*, imported from its module."""
        if name not in _PLACES:
            raise AttributeError(f"module 'vbuild' has no attribute {name!r}")
        from importlib import import_module

        value = globals()[name] = getattr(import_module(f"vbuild.{_PLACES[name]}"), name)
        return value


def __dir__() -> list[str]:
    return __all__
