"""Plugins as they are on the package index: what they say here, and that the odd ones are refused in one line."""

import pytest

from tests.factories.variants import document, machine, variant
from vbuild.errors import VariantError
from vbuild.variants.metadata import VariantProvider
from vbuild.variants.model import PluginFeatures
from vbuild.variants.plugins import Plugins
from vbuild.variants.providers import metadata_for

pytestmark = pytest.mark.network

OLDER = (
    "failed with status 1: TypeError: X8664Plugin.get_supported_configs() missing 2 required positional arguments: "
    "'self' and 'known_properties'"
)
PRINTED = (
    "printed 'AscendEnvironment.from_system: failed to detect Ascend environment: npu-smi command not found in PATH"
    "\\n'; expected nothing on stdout"
)


def asked(namespace: str, requires: str, plugin_api: str) -> tuple[PluginFeatures, ...]:
    """What the plugin says, for a release with a variant of *namespace*."""
    provider = VariantProvider(requires=(requires,), plugin_api=plugin_api)
    found = document(variant("x", f"{namespace} :: a :: b"), metadata=metadata_for([namespace], {namespace: provider}))
    return Plugins()(found, machine())


@pytest.mark.parametrize(
    ("namespace", "requires", "endpoint"),
    [
        ("nvidia", "nvidia-variant-provider>=0.0.1,<1", "nvidia_variant_provider.plugin:NvidiaVariantPlugin"),
        ("amd", "rocm-bootstrap==0.3.0", "rocm_bootstrap.variant_provider:AMDVariantPlugin"),
    ],
)
def test_a_vendor_s_plugin_is_not_run_where_vbuild_answers(namespace: str, requires: str, endpoint: str) -> None:
    assert asked(namespace, requires, endpoint) == ()


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("namespace", "requires", "plugin_api", "why"),
    [
        (
            "nvidia",
            "nvidia-variant-provider==0.0.0a0",  # all that the index has of it
            "nvidia_variant_provider.plugin:NvidiaVariantPlugin",
            "failed with status 1: ModuleNotFoundError: No module named 'nvidia_variant_provider.plugin'",
        ),
        (
            "x86_64",
            "provider-variant-x86-64==0.0.1.post2",  # of an older draft
            "provider_variant_x86_64.plugin:X8664Plugin",
            OLDER,
        ),
        (
            "ascend",
            "ascend-variant-provider==0.0.2",
            "ascend_variant_provider.plugin:AscendVariantPlugin",
            PRINTED,
        ),
    ],
    ids=["placeholder", "older draft", "prints"],
)
def test_a_plugin_that_is_not_as_the_draft_says_is_refused(
    namespace: str, requires: str, plugin_api: str, why: str
) -> None:
    with pytest.raises(VariantError) as refusal:
        asked(namespace, requires, plugin_api)
    place, _, what = str(refusal.value).partition("): ")
    assert place.startswith(f"plugin of {namespace}: {requires}: {requires.replace('==', ' ')} (sha256 ")
    assert what == why
