"""How Windows searches for DLLs, and which file of a wheel in site-packages loads which.

    Python loads modules with LOAD_LIBRARY_SEARCH_DEFAULT_DIRS | LOAD_LIBRARY_SEARCH_DLL_LOAD_DIR: by file name without
    regard to case, what is loaded already; in the module's folder; in Python's; in those that code gave to
    os.add_dll_directory; in System32. PATH does not count.

delvewheel puts DLLs into the folder demo.libs as NAME-hash.dll, and such a call into the package's __init__.py.
https://docs.python.org/3/library/os.html#os.add_dll_directory
https://learn.microsoft.com/en-us/windows/win32/dlls/dynamic-link-library-search-order
"""

import posixpath
import re
from collections.abc import Callable, Collection, Iterator, Mapping

from vbuild.binary.linkage import Edge, Via
from vbuild.binary.outline import BinaryOutline

# delvewheel, _dll_list.py: API sets, and what Pythons bring, with the C runtime
_GIVEN = re.compile(
    r"(api-ms-win|ext-ms-win|api-ms-onecore)-.*\.dll|python\d+t?(_d)?\.dll|libpypy[\d.]*-c\.dll|python-native\.dll"
    r"|vcruntime140(_1|_threads)?d?\.dll|ucrtbased?\.dll|msvcrt\.dll"
)
# those of Windows 10 that wheels need; delvewheel's ignore_names_x64 has 1,422 of 7 SP1 and later
_NAMES = """
    activeds advapi32 authz avicap32 avifil32 avrt bcrypt bcryptprimitives bthprops cabinet cfgmgr32 clusapi combase
    comctl32 comdlg32 coremessaging credui crypt32 cryptbase cryptnet cryptui d2d1 d3d10 d3d10_1 d3d11 d3d12 d3d8 d3d9
    d3dcompiler_47 davclnt dbgeng dbghelp dcomp ddraw devobj dhcpcsvc dhcpcsvc6 dinput dinput8 dnsapi dsound dsrole
    dwmapi dwrite dxgi dxva2 esent evr fltlib fwpuclnt gdi32 gdi32full gdiplus glu32 gpapi hid httpapi icmp iertutil
    imagehlp imm32 iphlpapi kernel32 kernelbase ktmw32 loadperf mapi32 mf mfplat mfreadwrite mpr msacm32 mscms mscoree
    msdmo msi msimg32 mssign32 mstask msvfw32 mswsock msxml6 ncrypt netapi32 netutils newdev normaliz ntdll ntdsapi
    ntlanman odbc32 odbccp32 ole32 oleacc oleaut32 oledlg opengl32 pdh powrprof propsys psapi quartz rasapi32 rasdlg
    resutils rpcns4 rpcrt4 rstrtmgr samcli samlib sas schannel secur32 security sensapi setupapi sfc shcore shell32
    shfolder shlwapi slc snmpapi srvcli sspicli tapi32 tbs tdh traffic twinapi ualapi uiautomationcore urlmon user32
    userenv usp10 uxtheme version virtdisk vssapi wdscore webservices wecapi wer wevtapi wiaservc winbio windowscodecs
    winhttp wininet winmm winscard wintrust winusb wkscli wlanapi wldap32 ws2_32 wscapi wsdapi wsock32 wtsapi32
    xaudio2_8 xaudio2_9 xinput1_4 xinput9_1_0 xmllite xolehlp
"""
_SYSTEM = frozenset(f"{name}.dll" for name in _NAMES.split()) | {"winspool.drv", "ntoskrnl.exe"}
_DRIVER = frozenset({"nvcuda.dll", "nvml.dll", "nvcuvid.dll", "nvencodeapi64.dll", "nvapi64.dll"})
# which drivers bring, and packages too
_DRIVER_LOADERS = frozenset({"opencl.dll", "vulkan-1.dll"})


def is_system(name: str) -> bool:
    return name.lower() in _SYSTEM or _GIVEN.fullmatch(name.lower()) is not None


def is_driver(name: str) -> bool:
    return name.lower() in _DRIVER


def edges_of(
    files: Mapping[str, BinaryOutline], *, added: Collection[str] = (), is_elsewhere: Callable[[str], bool]
) -> Iterator[Edge]:
    """The edges from *files* to the DLLs that they need.

    *added* are the folders given to os.add_dll_directory; *is_elsewhere* says whether another package has a name.
    """
    homes: dict[str, list[str]] = {}
    for path, outline in files.items():
        if outline.type == "DLL":
            homes.setdefault(posixpath.basename(path).lower(), []).append(path)
    for path, outline in files.items():
        folder = posixpath.dirname(path)
        for name in outline.needed:
            fitting = [home for home in homes.get(name.lower(), ()) if _fits(files[home], outline)]
            beside = next((home for home in fitting if posixpath.dirname(home) == folder), None)
            in_added = next((home for home in fitting if posixpath.dirname(home) in added), None)
            if beside:
                yield Edge(path, name, Via.OWN, beside)
            elif in_added:
                yield Edge(path, name, Via.ADDED, in_added)
            elif is_system(name):
                yield Edge(path, name, Via.PLATFORM, None)
            elif is_driver(name) or name.lower() in _DRIVER_LOADERS:
                yield Edge(path, name, Via.DRIVER, None)
            elif fitting:
                nearest = min(fitting, key=lambda home: (-len(posixpath.commonprefix([home, path])), home))
                yield Edge(path, name, Via.NAME, nearest)
            else:
                yield Edge(path, name, Via.OUTSIDE if is_elsewhere(name) else Via.MISSING, None)


def _fits(library: BinaryOutline, consumer: BinaryOutline) -> bool:
    """Whether a process with *consumer* can load *library*; both kinds of x64 code mix."""
    machines = {library.machine, consumer.machine}
    return len(machines) == 1 or "arm64x" in machines or machines == {"amd64", "arm64ec"}
