"""Small programs that choose code at run time, rightly and wrongly, and what happens to them on lesser processors.

Each program is a way to use a test, a test and a fault, if any; several of them become one library. They are run in
qemu on processors that lack features one after the other: what ends by SIGILL on one of them is wrong.
"""

# ruff: noqa: E501  # C code in strings

import os
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.factories.dispatch_writes import OVERWRITTEN, WRITTEN_NEAR

# each has more than the one before: SSE3; SSSE3; SSE4.1; SSE4.2, POPCNT; AES; AVX; all of v3; and some lack one feature
PROCESSORS = (
    *("qemu64", "Conroe", "Penryn", "Nehalem", "Westmere", "SandyBridge", "Haswell", "Broadwell", "Nehalem,-popcnt"),
    *(f"Haswell,-{feature}" for feature in ("avx", "avx2", "fma", "bmi1", "bmi2", "aes", "f16c", "xsave")),
)
EVERYTHING = "max"
_BATCH = 12

# what the fast function needs: instruction, builtin's name, CPUID's leaf, register and bit; what is not enough
_NEEDS = {
    "avx2": ("vpaddd %ymm0, %ymm1, %ymm2", "avx2", (7, "b", 5), ("avx", "sse4.2")),
    "avx": ("vaddps %ymm0, %ymm1, %ymm2", "avx", (1, "c", 28), ("sse4.2", "aes")),
    "fma": ("vfmadd231ps %ymm0, %ymm1, %ymm2", "fma", (1, "c", 12), ("avx", "popcnt")),
    "bmi2": ("pdep %eax, %eax, %ecx", "bmi2", (7, "b", 8), ("avx", "sse4.1")),
    "sse42": ("pcmpgtq %xmm0, %xmm1", "sse4.2", (1, "c", 20), ("ssse3", "sse4.1")),
    "aes": ("aesenc %xmm0, %xmm1", "aes", (1, "c", 25), ("sse4.2", "ssse3")),
}
_WRONG_BITS = {"avx2": (1, "c", 28), "avx": (1, "c", 20), "fma": (1, "c", 28), "bmi2": (1, "c", 28)}
_WRONG_BITS |= {"sse42": (1, "c", 9), "aes": (1, "c", 20)}

_HEAD = """
#include <stdlib.h>
#include <cpuid.h>
#include <stdio.h>
#include <string.h>
#define NOINLINE __attribute__((noinline, noclone))
"""

# a function that answers by number, of which only one is the test
_INFO = """NOINLINE static int info@(int which) { unsigned a, b, c, d; __cpuid(1, a, b, c, d); switch (which) { case 0: return d >> 26 & 1;
        case 1: return c & 1; case 2: return c >> 9 & 1; case 3: return (TEST) != 0; case 4: return b > 3; default: return 0; } }
"""

# @ is replaced by the program's number, TEST by an expression, YES and NO by what is called for each answer, INFO by what is above
_WAYS = {
    "if": "int run@(int x) { if (TEST) return YES@(x); return NO@(x); }",
    "ternary": "int run@(int x) { return TEST ? YES@(x) + 1 : NO@(x) + 2; }",
    "early-return": "int run@(int x) { int y = x * 3; if (!(TEST)) return NO@(y); y ^= x; return YES@(y) + y; }",
    "goto": """int run@(int x) { int r = 0; if (!(TEST)) goto no; r = YES@(x); goto out;
        no: r = NO@(x); out: return r + x; }""",
    "loop": """int run@(int x) { int r = 0, has = TEST; for (int i = 0; i < (x & 7) + 1; i++) r += has ? YES@(i) : NO@(i);
        return r; }""",
    "constructor": """static int has@; __attribute__((constructor)) static void init@(void) { has@ = TEST; }
        int run@(int x) { return has@ ? YES@(x) : NO@(x); }""",
    "bool": """static _Bool has@; __attribute__((constructor)) static void init@(void) { has@ = TEST; }
        int run@(int x) { if (x > 3 && has@) return YES@(x); return has@ ? YES@(x) + 1 : NO@(x); }""",
    "not-bool": """static int lacks@ = 1; __attribute__((constructor)) static void init@(void) { lacks@ = !(TEST); }
        int run@(int x) { if (lacks@) return NO@(x); return YES@(x) + 1; }""",
    "lazy": """static int has@ = -1;
        int run@(int x) { if (has@ < 0) has@ = (TEST) != 0; return has@ ? YES@(x) : NO@(x); }""",
    "lazy-tristate": """static int state@;
        NOINLINE static int state_of@(void) { if (state@ == 0) state@ = TEST ? 2 : 1; return state@; }
        int run@(int x) { return state_of@() == 2 ? YES@(x) : NO@(x); }""",
    "wrapper": "NOINLINE static int has@(void) { return TEST; } int run@(int x) { return has@() ? YES@(x) : NO@(x); }",
    "wrapper-of-wrapper": """NOINLINE static int asked@(void) { return TEST; }
        NOINLINE static int has@(void) { return asked@() != 0; }
        int run@(int x) { return has@() ? YES@(x) : NO@(x); }""",
    "level-switch": """static int level@; __attribute__((constructor)) static void init@(void) {
        if (TEST) level@ = 2; else if (__builtin_cpu_supports("sse3")) level@ = 1; }
        int run@(int x) { switch (level@) { case 2: return YES@(x); case 1: return NO@(x) + 1; default: return NO@(x); } }""",
    "level-compare": """static int level@; __attribute__((constructor)) static void init@(void) {
        level@ = TEST ? 3 : __builtin_cpu_supports("sse3") ? 1 : 0; }
        int run@(int x) { if (level@ >= 2) return YES@(x); return NO@(x); }""",
    "dense-switch": """enum { L0, L1, L2, L3, L4, L5 }; static int level@; __attribute__((constructor)) static void init@(void) {
        level@ = TEST ? L5 : __builtin_cpu_supports("ssse3") ? L2 : L1; }
        int run@(int x) { switch (level@) { case L0: return x; case L1: return NO@(x) * 3; case L2: return NO@(x) - 7;
        case L3: return NO@(x + 9); case L4: return NO@(x) ^ 5; case L5: return YES@(x) + 11; } return 0; }""",
    "bits": """static unsigned bits@; __attribute__((constructor)) static void init@(void) {
        if (__builtin_cpu_supports("sse3")) bits@ |= 1; if (__builtin_cpu_supports("ssse3")) bits@ |= 2;
        if (TEST) bits@ |= 16; if (__builtin_cpu_supports("popcnt")) bits@ |= 4; }
        int run@(int x) { return bits@ & 16 ? YES@(x) : NO@(x); }""",
    "bits-two": """static unsigned bits@; __attribute__((constructor)) static void init@(void) {
        unsigned found = 0; if (__builtin_cpu_supports("sse3")) found |= 1; if (TEST) found |= 8; bits@ = found; }
        int run@(int x) { if ((bits@ & 9) == 9) return YES@(x); return NO@(x); }""",
    "struct": """struct cpu@ { int vendor, has, other; }; static struct cpu@ cpu@;
        NOINLINE static void fill@(struct cpu@ *c) { c->vendor = 3; c->has = TEST; c->other = 7; }
        __attribute__((constructor)) static void init@(void) { fill@(&cpu@); }
        int run@(int x) { return cpu@.has ? YES@(x) : NO@(x); }""",
    "struct-on-stack": """struct cpu@ { int vendor, has, other; };
        NOINLINE static void fill@(struct cpu@ *c) { c->vendor = 3; c->has = TEST; c->other = 7; }
        int run@(int x) { struct cpu@ c; fill@(&c); return c.has ? YES@(x) : NO@(x); }""",
    "argument": """NOINLINE static int inner@(int has, int x) { return has ? YES@(x) : NO@(x); }
        int run@(int x) { return inner@((TEST) != 0, x); }""",
    "handed-down": """NOINLINE static int last@(int x, int has) { return has ? YES@(x) : NO@(x); }
        NOINLINE static int third@(int has, int x) { return last@(x + 1, has) ^ 3; }
        NOINLINE static int second@(int x, int has) { return third@(has, x) * 3; }
        int run@(int x) { return second@(x, (TEST) != 0); }""",
    "heap": """struct ctx@ { char name[300]; int has; }; static struct ctx@ *kept@;
        __attribute__((constructor)) static void init@(void) { kept@ = calloc(1, sizeof *kept@); kept@->has = TEST; }
        NOINLINE static int inner@(struct ctx@ *c, int x) { return c->has ? YES@(x) : NO@(x); }
        int run@(int x) { return inner@(kept@, x); }""",
    "heap-copied": """struct ctx@ { char name[300]; int has; }; static struct ctx@ *kept@; static struct ctx@ first@ = {"", 0};
        NOINLINE static struct ctx@ *made@(const struct ctx@ *from) { struct ctx@ *c = malloc(sizeof *c); *c = *from; return c; }
        __attribute__((constructor)) static void init@(void) { kept@ = made@(&first@); kept@->has = TEST; }
        NOINLINE static int inner@(struct ctx@ *c, int x) { return c->has ? YES@(x) : NO@(x); }
        int run@(int x) { return inner@(kept@, x); }""",
    "heap-copied-set": """struct ctx@ { char name[300]; int has; }; static struct ctx@ *kept@, *asked@; static struct ctx@ first@ = {"a", 1};
        NOINLINE static struct ctx@ *made@(const struct ctx@ *from) { struct ctx@ *c = malloc(sizeof *c); *c = *from; return c; }
        __attribute__((constructor)) static void init@(void) { kept@ = made@(&first@); asked@ = made@(&first@);
        asked@->has = TEST; } NOINLINE static int inner@(struct ctx@ *c, int x) { return c->has ? YES@(x) : NO@(x); }
        int run@(int x) { return inner@(asked@, x); } int more@(int x) { return inner@(kept@, x); }""",
    "heap-beside": """struct ctx@ { char name[300]; int has; }; struct job@ { int a[75]; int runs; };
        static struct ctx@ *kept@; static struct job@ *job@;
        __attribute__((constructor)) static void init@(void) { kept@ = calloc(1, sizeof *kept@); job@ = calloc(1, sizeof *job@);
        kept@->has = TEST; } NOINLINE static void note@(struct job@ *j, int x) { j->runs = x; }
        NOINLINE static int inner@(struct ctx@ *c, int x) { return c->has ? YES@(x) : NO@(x); }
        int run@(int x) { note@(job@, x); return inner@(kept@, x); }""",
    "heap-other": """struct ctx@ { char name[300]; int has; }; struct job@ { int a[75]; int runs; };
        static struct ctx@ *kept@; static struct job@ *job@;
        __attribute__((constructor)) static void init@(void) { kept@ = calloc(1, sizeof *kept@); job@ = calloc(1, sizeof *job@);
        kept@->has = TEST; } NOINLINE static void note@(struct job@ *j, int x) { j->runs = x; }
        NOINLINE static int inner@(struct job@ *j, int x) { return j->runs ? YES@(x) : NO@(x); }
        int run@(int x) { note@(job@, x); return kept@->has ? NO@(x) : NO@(x + 1); }
        int more@(int x) { note@(job@, x); return inner@(job@, x); }""",
    "heap-part": """struct cpu@ { int vendor, has; }; struct ctx@ { char name[300]; struct cpu@ cpu; }; static struct ctx@ *kept@;
        NOINLINE static void set@(struct cpu@ *c, int has) { c->vendor = 3; c->has = has; }
        __attribute__((constructor)) static void init@(void) { kept@ = calloc(1, sizeof *kept@); kept@->cpu.has = TEST; }
        NOINLINE static int inner@(struct ctx@ *c, int x) { return c->cpu.has ? YES@(x) : NO@(x); }
        int run@(int x) { return inner@(kept@, x); } int more@(int x) { set@(&kept@->cpu, x); return inner@(kept@, x); }""",
    "heap-set": """struct ctx@ { char name[300]; int has; }; static struct ctx@ *kept@;
        __attribute__((constructor)) static void init@(void) { kept@ = calloc(1, sizeof *kept@); kept@->has = TEST; }
        NOINLINE static void set@(struct ctx@ *c, int has) { c->has = has; } NOINLINE static void keep@(struct ctx@ *c, int has) { c->name[3] = has; }
        static void (*const sets@[])(struct ctx@ *, int) = {keep@, set@};
        NOINLINE static int inner@(struct ctx@ *c, int x) { return c->has ? YES@(x) : NO@(x); }
        int run@(int x) { return inner@(kept@, x); } int more@(int x) { sets@[x & 1](kept@, x); return inner@(kept@, x); }""",
    "heap-listed": """struct ctx@ { struct ctx@ *next; char name[300]; int has; }; static struct ctx@ *first@, *kept@;
        __attribute__((constructor)) static void init@(void) { first@ = calloc(1, sizeof *first@); kept@ = calloc(1, sizeof *kept@);
        first@->next = kept@; kept@->has = TEST; }
        NOINLINE static int inner@(struct ctx@ *c, int x) { return c->has ? YES@(x) : NO@(x); }
        int run@(int x) { return inner@(kept@, x); }
        int more@(int x) { for (struct ctx@ *c = first@; c; c = c->next) c->has = x; return inner@(kept@, x); }""",
    "heap-exchanged": """struct ctx@ { char name[300]; int has; }; static struct ctx@ *kept@, *other@, *now@;
        __attribute__((constructor)) static void init@(void) { kept@ = calloc(1, sizeof *kept@); other@ = calloc(1, sizeof *other@);
        kept@->has = TEST; other@->has = 1; now@ = kept@; }
        NOINLINE static int inner@(struct ctx@ *c, int x) { return c->has ? YES@(x) : NO@(x); }
        int run@(int x) { return inner@(now@, x); } int more@(int x) { struct ctx@ **where = &now@; *where = other@; return inner@(now@, x); }""",
    "heap-filled": """struct ctx@ { char name[300]; int has; }; static struct ctx@ *kept@;
        __attribute__((constructor)) static void init@(void) { kept@ = malloc(sizeof *kept@); __builtin_memset(kept@, 0, sizeof *kept@);
        kept@->has = TEST; } NOINLINE static int inner@(struct ctx@ *c, int x) { return c->has ? YES@(x) : NO@(x); }
        int run@(int x) { return inner@(kept@, x); }
        int more@(int x) { __builtin_memset(kept@, x, sizeof *kept@); return inner@(kept@, x); }""",
    "flags-overwritten": """struct flags@ { int a, b, c, d; }; static struct flags@ flags@;
        __attribute__((constructor)) static void init@(void) { flags@.b = TEST; }
        NOINLINE static int inner@(int x) { return flags@.b ? YES@(x) : NO@(x); }
        int run@(int x) { return inner@(x); } int more@(int x) { struct flags@ f = {x, x, x, x}; flags@ = f; return inner@(x); }""",
    "told-by-fast": """NOINLINE static int choose@(int has, int x) { return has ? YES@(x) : NO@(x); }
        NOINLINE static int upper@(int x) { INLINE_YES; return choose@(1, x + 1) * 3; }
        int run@(int x) { return TEST ? upper@(x) : choose@(0, x); }""",
    "told-by-any": """NOINLINE static int choose@(int has, int x) { return has ? YES@(x) : NO@(x); }
        NOINLINE static int upper@(int x) { if (x > 5) { INLINE_YES; } return choose@(1, x + 1) * 3; }
        int run@(int x) { return TEST ? upper@(x) : choose@(0, x); } int more@(int x) { return x == 3 ? upper@(x) : x; }""",
    "cached-word": """static unsigned long cache@;
        NOINLINE static unsigned long detect@(void) { unsigned long f = 1UL << 63; if (TEST) f |= 128;
        if (__builtin_cpu_supports("sse3")) f |= 8; cache@ = f; return f; }
        int run@(int x) { unsigned long f = cache@; if (!f) f = detect@(); return f & 128 ? YES@(x) : NO@(x); }""",
    "cached-byte": """static unsigned char cache@ = 255;
        NOINLINE static int detect@(void) { unsigned char f = (TEST) != 0; cache@ = f; return f; }
        int run@(int x) { unsigned char f = cache@; if (f == 1 || (f == 255 && detect@())) return YES@(x); return NO@(x); }""",
    "cached-byte-set": """static unsigned char cache@ = 255;
        NOINLINE static int detect@(void) { unsigned char f = (TEST) != 0; cache@ = f; return f; }
        NOINLINE static int inner@(int x) { unsigned char f = cache@; if (f == 1 || (f == 255 && detect@())) return YES@(x); return NO@(x); }
        int run@(int x) { return inner@(x); } int more@(int x) { cache@ = x; return inner@(x); }""",
    "asked-by-number": """INFO
        __attribute__((visibility("hidden"))) int (*ask@)(int) = info@;
        int run@(int x) { if (ask@ && ask@(2) && ask@(3)) return YES@(x); return NO@(x); }
        int more@(int x) { int (*ask)(int) = ask@; if (!ask(3)) return NO@(x); return YES@(x) + 1; }""",
    "asked-by-other-number": """INFO
        __attribute__((visibility("hidden"))) int (*ask@)(int) = info@;
        int run@(int x) { return ask@(3) ? YES@(x) : NO@(x); } int more@(int x) { return ask@(2) ? YES@(x) : NO@(x); }""",
    "asked-by-any-number": """INFO
        __attribute__((visibility("hidden"))) int (*ask@)(int) = info@;
        int run@(int x) { return ask@(3) ? YES@(x) : NO@(x); } int more@(int x) { return ask@(x & 3) ? YES@(x) : NO@(x); }""",
    "asked-and-set": """NOINLINE static int always@(int which) { return which > 1; }
        INFO
        __attribute__((visibility("hidden"))) int (*ask@)(int) = info@;
        NOINLINE static int inner@(int x) { return ask@(3) ? YES@(x) : NO@(x); }
        int run@(int x) { return inner@(x); } int more@(int x) { ask@ = always@; return inner@(x); }""",
    "asked-and-set-through": """NOINLINE static int always@(int which) { return which > 1; }
        INFO
        __attribute__((visibility("hidden"))) int (*ask@)(int) = info@;
        NOINLINE static void put@(int (**where)(int), int (*what)(int)) { *where = what; }
        NOINLINE static int inner@(int x) { return ask@(3) ? YES@(x) : NO@(x); }
        int run@(int x) { return inner@(x); } int more@(int x) { put@(&ask@, always@); return inner@(x); }""",
    "asked-and-set-by-list": """NOINLINE static int always@(int which) { return which > 1; }
        INFO
        __attribute__((visibility("hidden"))) int (*ask@)(int) = info@;
        int (**const places@[])(int) = {&ask@, &ask@};
        NOINLINE static int inner@(int x) { return ask@(3) ? YES@(x) : NO@(x); }
        int run@(int x) { return inner@(x); } int more@(int x) { *places@[x & 1] = always@; return inner@(x); }""",
    "asked-and-set-beside": """NOINLINE static int always@(int which) { return which > 1; }
        INFO
        __attribute__((visibility("hidden"))) int (*ask@[4])(int) = {info@, info@, info@, info@};
        NOINLINE static int inner@(int x) { return ask@[2](3) ? YES@(x) : NO@(x); }
        int run@(int x) { return inner@(x); } int more@(int x) { ask@[x & 3] = always@; return inner@(x); }""",
    "cached-behind": """static unsigned char cache@ = 255;
        NOINLINE static int detect@(void) { unsigned char f = (TEST) != 0; cache@ = f; return f; }
        int run@(int x) { int has = 0; if (x > 2) { unsigned char *at = &cache@; __asm__("" : "+r"(at)); unsigned char f = *at;
        has = f == 1 || (f == 255 && detect@()); } return has ? YES@(x) : NO@(x); }""",
    "cached-behind-set": """static unsigned char cache@ = 255, other@, *given@ = &other@;
        NOINLINE static int detect@(void) { unsigned char f = (TEST) != 0; cache@ = f; return f; }
        NOINLINE static int inner@(int x) { unsigned char f = cache@; if (f == 1 || (f == 255 && detect@())) return YES@(x); return NO@(x); }
        int run@(int x) { return inner@(x); } int more@(int x) { unsigned char *at = given@; if (x > 0) { at = &cache@;
        __asm__("" : "+r"(at)); } int y = x * 3; if (y > 8) y ^= 5; *at = x; return inner@(y); }""",
    "flags-beside": """struct flags@ { int a, b, c, d; }; static struct flags@ flags@;
        NOINLINE static void fill@(struct flags@ *f) { unsigned a, b, c = 0, d; __get_cpuid(1, &a, &b, &c, &d);
        f->a = c & 1; f->b = (TEST) != 0; f->c = c >> 23 & 1; f->d = c >> 9 & 1; }
        __attribute__((constructor)) static void init@(void) { struct flags@ f = {0}; fill@(&f); flags@ = f; }
        int run@(int x) { return flags@.b ? YES@(x) : NO@(x); }""",
    "pointer": """static int (*chosen@)(int) = NO@;
        __attribute__((constructor)) static void init@(void) { if (TEST) chosen@ = YES@; }
        int run@(int x) { return chosen@(x); }""",
    "pointer-lazy": """static int first@(int x); static int (*chosen@)(int) = first@;
        static int first@(int x) { chosen@ = TEST ? YES@ : NO@; return chosen@(x); }
        int run@(int x) { return chosen@(x); }""",
    "pointer-local": "int run@(int x) { int (*chosen)(int) = NO@; if (TEST) chosen = YES@; return chosen(x); }",
    "pointer-returned": """NOINLINE static int (*choose@(void))(int) { if (TEST) return YES@; return NO@; }
        int run@(int x) { return choose@()(x); }""",
    "callback": """NOINLINE static int each@(int (*call)(int), int x) { return call(x) + call(x + 1); }
        int run@(int x) { return TEST ? each@(YES@, x) : each@(NO@, x); }""",
    "operations": """struct ops@ { int (*one)(int), (*two)(int); }; static struct ops@ ops@;
        __attribute__((constructor)) static void init@(void) {
        ops@.one = NO@; ops@.two = NO@; if (TEST) { ops@.one = YES@; ops@.two = YES@; } }
        int run@(int x) { return ops@.one(x) + ops@.two(x); }""",
    "operations-constant": """struct ops@ { int size; int (*one)(int); };
        static const struct ops@ yes_ops@ = {3, YES@}, no_ops@ = {4, NO@}; static const struct ops@ *ops@ = &no_ops@;
        __attribute__((constructor)) static void init@(void) { if (TEST) ops@ = &yes_ops@; }
        int run@(int x) { return ops@->one(x) + ops@->size; }""",
    "table": """static int (*const table@[])(int) = {NO@, NO@, YES@}; static int level@;
        __attribute__((constructor)) static void init@(void) {
        level@ = TEST ? 2 : __builtin_cpu_supports("sse3") ? 1 : 0; }
        int run@(int x) { return table@[level@](x); }""",
    "table-guarded": """static int (*const table@[])(int) = {YES@, YES@};
        int run@(int x) { if (TEST) return table@[x & 1](x); return NO@(x); }""",
    "ifunc": """static int (*choose@(void))(int) { __builtin_cpu_init(); return TEST ? YES@ : NO@; }
        int run@(int x) __attribute__((ifunc("choose@")));""",
    "callers-caller": """NOINLINE static int inner@(int x) { return YES@(x) * 3; }
        NOINLINE static int middle@(int x) { return inner@(x + 1) ^ 5; }
        int run@(int x) { if (TEST) return middle@(x); return NO@(x); }""",
    "tail-call": """NOINLINE static int jumps@(int x) { return YES@(x + 2); }
        int run@(int x) { if (TEST) return jumps@(x); return NO@(x); }""",
    "abort": """int run@(int x) { if (!(TEST)) abort(); return YES@(x); }""",
    "inlined": """int run@(int x) { if (TEST) { INLINE_YES; return x + 1; } INLINE_NO; return x; }""",
    "inlined-in-loop": """int run@(int x) { int has = TEST; for (int i = 0; i < 4; i++) { x += i;
        if (has) { INLINE_YES; x ^= 3; } else { INLINE_NO; x ^= 9; } } return x; }""",
    "and": """int run@(int x) { if (__builtin_cpu_supports("sse3") && (TEST) && __builtin_cpu_supports("sse2"))
        return YES@(x); return NO@(x); }""",
    "or": """int run@(int x) { if (!__builtin_cpu_supports("sse3") || !(TEST)) return NO@(x); return YES@(x); }""",
    "other-library": "int has_elsewhere@(void); int run@(int x) { return has_elsewhere@() ? YES@(x) : NO@(x); }",
    "other-library-variable": "extern int level_elsewhere@; int run@(int x) { return level_elsewhere@ > 1 ? YES@(x) : NO@(x); }",
    "other-library-code": """int run@(int x) { return TEST ? yes_elsewhere@(x) : no_elsewhere@(x); }""",
    "two-entries": """int run@(int x) { return TEST ? YES@(x) : NO@(x); }
        int more@(int x) { return TEST ? YES@(x) - 1 : NO@(x) - 2; }""",
    "virtual": """struct Base@ { virtual int go(int x) { return NO@(x); } virtual ~Base@() {} };
        struct Fast@ : Base@ { int go(int x) override { return YES@(x); } };
        static Base@ *made@() { return TEST ? new Fast@ : new Base@; }
        int run@(int x) { static Base@ *kept = made@(); return kept->go(x); }""",
    "static-local": """NOINLINE static bool has@() { static const bool found = TEST; return found; }
        int run@(int x) { return has@() ? YES@(x) : NO@(x); }""",
    "lambda": """extern "C++" { template <class F> NOINLINE static int with@(F f, int x) { return f(x); } }
        int run@(int x) { if (TEST) return with@([](int y) { return YES@(y) + 1; }, x); return NO@(x); }""",
    "member": """struct Engine@ { bool has; Engine@() : has(TEST) {} int go(int x) { return has ? YES@(x) : NO@(x); } };
        static Engine@ engine@; int run@(int x) { return engine@.go(x); }""",
    "clones": """__attribute__((target_clones("default", "avx2"))) int run@(int x) {
        int a[64]; for (int i = 0; i < 64; i++) a[i] = x * i; int s = 0; for (int i = 0; i < 64; i++) s += a[i] ^ x;
        return s; } int use@(int x) { return YES@ == 0 || NO@(x); }""",
    **OVERWRITTEN,
    **WRITTEN_NEAR,
}
# ways that are not followed: right ones are in doubt, too, and wrong ones must not pass all the same
DOUBTFUL = frozenset(
    {"told-by-fast", "near-text", "near-pointers", "near-name", "near-counts", "near-memset-behind"}
    | {"near-heap-memset", "heap", "heap-copied", "heap-beside"}
)
_CPP = frozenset({"virtual", "static-local", "lambda", "member"})

# faults that are not in the test: what is exchanged or added
_FAULTS = {
    "none": "",
    "exchanged": "",
    "also-called": "int also@(int x) { return fast@(x) + 1; }",
    "also-called-late": "NOINLINE static int late@(int x) { return fast@(x); } int also@(int x) { return x == 7 ? late@(x) : x; }",
    "also-pointed-at": "static int (*also_table@[2])(int) = {slow@, fast@}; int also@(int x) { return also_table@[x & 1](x); }",
    "also-at-start": "static int started@; __attribute__((constructor)) static void start@(void) { started@ = fast@(3); } int also@(int x) { return x + started@; }",
    "also-written": """static int altered@; __attribute__((constructor)) static void ask_first@(void) { altered@ = __builtin_cpu_supports("avx2") != 0; }
        NOINLINE static void alter@(int x) { __asm__ volatile("lea %0, %%rax; test %1, %1; jns 1f; movl $0, %%eax; jmp 2f; 1: movl $1, (%%rax); 2:" : "+m"(altered@) : "r"(x) : "rax", "memory", "cc"); }
        int also@(int x) { alter@(x); return altered@ ? fast@(x) : x; }""",
    "also-read": """static int known_once@; __attribute__((constructor)) static void ask_once@(void) { known_once@ = __builtin_cpu_supports("avx2") != 0; }
        NOINLINE static int read_at@(int x) { int r = 0; __asm__ volatile("lea %2, %%rax; test %1, %1; jns 1f; movl $0, %%eax; jmp 2f; 1: mov (%%rax), %0; 2:" : "+r"(r) : "r"(x), "m"(known_once@) : "rax", "cc"); return r; }
        int also@(int x) { if (read_at@(x) + x == 99) return x; return known_once@ ? fast@(x) : x; }""",
    "also-returned": """struct lent@ { long tag; int *place; }; static int lend_value@; __attribute__((constructor)) static void lend_first@(void) { lend_value@ = __builtin_cpu_supports("avx2") != 0; }
        NOINLINE static struct lent@ lend@(long x) { struct lent@ lent = {x * 3, &lend_value@}; return lent; }
        NOINLINE static int *lend_place@(void) { return &lend_value@; }
        int also@(int x) { if (x & 1) *lend@(x).place = 1; else *lend_place@() = 1; return lend_value@ ? fast@(x) : x; }""",
    "also-lent": """struct shown@ { long tag; int *place; }; static int show_value@; __attribute__((constructor)) static void show_first@(void) { show_value@ = __builtin_cpu_supports("avx2") != 0; }
        NOINLINE static struct shown@ show@(long x) { struct shown@ shown = {x * 3, &show_value@}; return shown; }
        NOINLINE static int *show_place@(void) { return &show_value@; }
        int also@(int x) { if ((x & 1 ? *show@(x).place : *show_place@()) + x == 99) return x; return show_value@ ? fast@(x) : x; }""",
    "also-joined": """static int join_value@; __attribute__((constructor)) static void join_first@(void) { join_value@ = __builtin_cpu_supports("avx2") != 0; }
        NOINLINE static int join@(int x) { int r; __asm__ volatile("lea %1, %%rbx; mov (%%rbx), %0; test %2, %2; jns 1f; movslq %2, %%rbx; 1: test %0, %0; mov $0, %%ebx" : "=&r"(r) : "m"(join_value@), "r"(x) : "rbx", "cc"); return r; }
        int also@(int x) { if (join@(x) + x == 99) return x; return join_value@ ? fast@(x) : x; }""",
    "also-rejoined": """static int rejoin_value@, spare@; static int *volatile rejoin_place@ = &spare@; __attribute__((constructor)) static void rejoin_first@(void) { rejoin_value@ = __builtin_cpu_supports("avx2") != 0; }
        NOINLINE static void rejoin@(int x) { __asm__ volatile("lea %0, %%rbx; test %2, %2; jns 1f; mov %1, %%rbx; 1: movl $1, (%%rbx); mov $0, %%ebx" : "+m"(rejoin_value@) : "r"(rejoin_place@), "r"(x) : "rbx", "memory", "cc"); }
        int also@(int x) { rejoin@(x); return rejoin_value@ ? fast@(x) : x; }""",
    "also-in-front": """static int front_notes@[4], front_has@; __attribute__((constructor)) static void front_first@(void) { front_has@ = __builtin_cpu_supports("avx2") != 0; }
        NOINLINE static void note_front@(int *notes, int x) { notes[3] = x; } int also@(int x) { note_front@(front_notes@, x); return front_has@ ? fast@(x) : x; }""",
    "also-beyond": """static struct { int notes[4], has; } beyond@; __attribute__((constructor)) static void beyond_first@(void) { beyond@.has = __builtin_cpu_supports("avx2") != 0; }
        NOINLINE static void note_beyond@(int *notes, int x) { notes[4] = x; } int also@(int x) { note_beyond@(beyond@.notes, x); return beyond@.has ? fast@(x) : x; }""",
    "also-far-beyond": """static struct { int notes[4], has; } far@; __attribute__((constructor)) static void far_first@(void) { far@.has = __builtin_cpu_supports("avx2") != 0; }
        NOINLINE static int note_far@(int *notes, int x) { notes[4] = x; return x * 3; } NOINLINE static int noted_far@(int *notes, int x) { return note_far@(notes, x ^ 1) + 1; }
        int also@(int x) { x += noted_far@(far@.notes, x); return far@.has ? fast@(x) : x; }""",
    "named": "int run_NAME@(int x) { return fast@(x); }",
}


@dataclass(frozen=True)
class DispatchProgram:
    """One program: how it uses the test, which test it is, what is wrong with it, and how it is compiled."""

    number: int
    way: str
    test: str
    fault: str
    need: str

    @property
    def entries(self) -> tuple[str, ...]:
        names = [f"run{self.number}"]
        names += [f"{more}{self.number}" for more in ("more", "use") if f" {more}@(" in _WAYS[self.way]]
        if self.fault.startswith("also"):
            names.append(f"also{self.number}")
        if self.fault == "named":
            names.append(f"run_{self.need}{self.number}")
        return tuple(names)

    @property
    def is_cpp(self) -> bool:
        return self.way in _CPP

    def source(self) -> str:
        instruction = _NEEDS[self.need][0]
        clobbers = '"rax", "rcx"'
        inline = f'__asm__ volatile("{instruction.replace(chr(37), chr(37) * 2)}" ::: {clobbers})'
        test = _TESTS[self.test](self)
        yes, no = ("slow@", "fast@") if self.fault == "exchanged" else ("fast@", "slow@")
        inline_yes, inline_no = ("", inline) if self.fault == "exchanged" else (inline, "")
        text = _WAYS[self.way].replace("INFO", _INFO).replace("TEST", "(test@())" if self.test in _STATEMENTS else test)
        text = (
            text.replace("YES@", yes)
            .replace("NO@", no)
            .replace("yes_elsewhere@", "fast@")
            .replace("no_elsewhere@", "slow@")
        )
        text = text.replace("INLINE_YES", inline_yes).replace("INLINE_NO", inline_no)
        parts = [
            f"NOINLINE static int fast@(int x) {{ {inline}; return x * 2 + @; }}",
            'NOINLINE static int slow@(int x) { __asm__ volatile(""); return x + 2 - @; }',
            f"static inline int test@(void) {{ {test} }}" if self.test in _STATEMENTS else "",
            text,
            _FAULTS[self.fault].replace("NAME", self.need + "_"),
        ]
        return (
            "\n".join(parts)
            .replace("@", str(self.number))
            .replace(f"run_{self.need}_{self.number}", f"run_{self.need}{self.number}")
        )

    def elsewhere(self) -> str:
        """What the other library has for it."""
        if not self.way.startswith("other-library"):
            return ""
        test = _TESTS[self.test](self)
        body = test if self.test in _STATEMENTS else f"return {test};"
        found = f"static int found@(void) {{ {body} }} int has_elsewhere@(void) {{ return found@() != 0; }}\n"
        found += "int level_elsewhere@; __attribute__((constructor)) static void init@(void) { level_elsewhere@ = found@() ? 2 : 1; }"
        return found.replace("@", str(self.number))


def _cpuid(leaf: int, register: str, bit: int) -> str:
    mask = f"(1u << {bit})"
    return f"unsigned a, b, c, d; if (!__get_cpuid_count({leaf}, 0, &a, &b, &c, &d)) return 0; return ({register} & {mask}) != 0;"


def _raw(leaf: int, register: str, bit: int) -> str:
    ask = '__asm__ volatile("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d))'
    first = f"unsigned a = 0, b, c = 0, d; {ask}; if (a < {leaf}) return 0; a = {leaf}; c = 0; {ask};"
    return f"{first} return {register} >> {bit} & 1;"


def _xgetbv(leaf: int, register: str, bit: int) -> str:
    first = "unsigned a, b, c, d; __cpuid(1, a, b, c, d); if (!(c & (1u << 27)) || !(c & (1u << 28))) return 0;"
    second = 'unsigned lo, hi; __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0)); if ((lo & 6) != 6) return 0;'
    return f"{first} {second} __cpuid_count({leaf}, 0, a, b, c, d); return ({register} & (1u << {bit})) ? 1 : 0;"


def _need(program: DispatchProgram) -> tuple[str, str, tuple[int, str, int], tuple[str, ...]]:
    return _NEEDS[program.need]


_TESTS: dict[str, Callable[[DispatchProgram], str]] = {
    # right
    "builtin": lambda one: f'__builtin_cpu_supports("{_need(one)[1]}")',
    "builtin-compared": lambda one: f'(__builtin_cpu_supports("{_need(one)[1]}") != 0)',
    "several": lambda one: f'(__builtin_cpu_supports("sse3") && __builtin_cpu_supports("{_need(one)[1]}"))',
    "level": lambda _: '__builtin_cpu_supports("x86-64-v3")',
    "cpuid": lambda one: _cpuid(*_need(one)[2]),
    "raw-cpuid": lambda one: _raw(*_need(one)[2]),
    "xgetbv": lambda one: _xgetbv(*_need(one)[2]),
    "cpuid-mask": lambda _: (
        "unsigned a, b, c, d; __cpuid(1, a, b, c, d); const unsigned all = (1u << 27) | (1u << 28) | (1u << 12);"
        "if ((c & all) != all) return 0; __cpuid_count(7, 0, a, b, c, d); return (b & ((1u << 5) | (1u << 8))) == ((1u << 5) | (1u << 8));"
    ),
    # wrong, or too little
    "lesser": lambda one: f'__builtin_cpu_supports("{_need(one)[3][0]}")',
    "least": lambda one: f'__builtin_cpu_supports("{_need(one)[3][1]}")',
    "is-haswell": lambda _: '__builtin_cpu_is("haswell")',
    "vendor": lambda _: '(__builtin_cpu_is("intel") || __builtin_cpu_is("amd"))',
    "wrong-bit": lambda one: _cpuid(*_WRONG_BITS[one.need]),
    "unused": lambda _: "unsigned a, b, c, d; __cpuid(1, a, b, c, d); return a != 0;",
    "negated": lambda one: f'(!__builtin_cpu_supports("{_need(one)[1]}"))',
    "either": lambda one: f'(__builtin_cpu_supports("{_need(one)[1]}") || __builtin_cpu_supports("sse3"))',
    "environment": lambda _: "(getpid() > 1)",
    "cores": lambda _: "(sysconf(84) > 0)",
}
_STATEMENTS = frozenset({"cpuid", "raw-cpuid", "xgetbv", "cpuid-mask", "wrong-bit", "unused"})
_RIGHT = ("builtin", "builtin-compared", "several", "level", "cpuid", "raw-cpuid", "xgetbv", "cpuid-mask")
_WRONG = ("lesser", "least", "vendor", "is-haswell", "wrong-bit", "unused", "negated", "either", "environment", "cores")
_MORE = "int getpid(void); long sysconf(int); int pthread_once(int *, void (*)(void)); static int spare_of_all;\n"

_FLAGS = (("-O0",), ("-O1",), ("-O2",), ("-O3",), ("-Os",), ("-O2", "-fno-plt"), ("-O2", "-fvisibility=protected"))
_FINISHES = ("", "strip", "strip-all")


def programs(count: int, seed: int) -> tuple[DispatchProgram, ...]:
    """*count* programs: every way with a right and a wrong test first, then at random; about half are right."""
    chance = random.Random(seed)
    ways = list(_WAYS)
    chance.shuffle(ways)
    found = []
    for number in range(count):
        way = ways[number % len(ways)]
        need = "avx2" if way == "clones" else chance.choice(list(_NEEDS))
        kind = number // len(ways) % 4
        test = chance.choice(_WRONG if kind == 1 else _RIGHT)
        if way == "other-library-code" and test in _STATEMENTS:
            test = "builtin"
        fault = chance.choice(list(_FAULTS)[1:]) if kind == 3 else "none"
        found.append(DispatchProgram(number, way, test, fault, need))
    return tuple(found)


@dataclass(frozen=True)
class DispatchLibrary:
    """Several programs in one library, and the other library that it needs; *named* is the library with symbols."""

    programs: tuple[DispatchProgram, ...]
    path: Path
    named: Path
    other: Path | None
    flags: tuple[str, ...]


def libraries(programs: Sequence[DispatchProgram], folder: Path, seed: int) -> Iterator[DispatchLibrary]:
    """Compile *programs* into *folder*, some dozen at a time."""
    chance = random.Random(seed + 1)
    for number, batch in enumerate(_batches(programs)):
        yield _library(batch, folder, f"{'cpp' if batch[0].is_cpp else 'c'}{number}", chance)


def _batches(programs: Sequence[DispatchProgram]) -> Iterator[tuple[DispatchProgram, ...]]:
    """Programs of one language; one that fails when its library is loaded would take the others with it.

    What writes where it should not is apart, too: it may write to what those beside it keep.
    """
    alone = [program for program in programs if program.fault == "also-at-start"]
    kinds: dict[tuple[bool, bool], list[DispatchProgram]] = {}
    for program in programs:
        if program not in alone:
            kinds.setdefault((program.is_cpp, program.way in OVERWRITTEN), []).append(program)
    for _, chosen in sorted(kinds.items()):
        for start in range(0, len(chosen), _BATCH):
            yield tuple(chosen[start : start + _BATCH])
    for program in alone:
        yield (program,)


def _library(batch: tuple[DispatchProgram, ...], folder: Path, name: str, chance: random.Random) -> DispatchLibrary:
    flags: tuple[str, ...] = chance.choice(_FLAGS)
    finish = chance.choice(_FINISHES)
    is_cpp = batch[0].is_cpp
    if finish == "strip-all":
        flags = (*flags, "-fno-asynchronous-unwind-tables", "-fno-exceptions")
    if is_cpp:
        flags = tuple(flag for flag in flags if "visibility" not in flag)
    compiler = ["g++", "-x", "c++", "-fno-rtti"] if is_cpp else ["gcc", "-x", "c"]
    start, end = ('extern "C" {\n', "\n}") if is_cpp else ("", "")
    other = None
    if elsewhere := "\n".join(filter(None, (program.elsewhere() for program in batch))):
        other = folder / f"libelse{name}.so"
        _compile(["gcc", "-x", "c"], _HEAD + _MORE + elsewhere, other, ("-O2",), ())
    source = _HEAD + (start + _MORE) + "\n".join(program.source() for program in batch) + end
    named = folder / f"{name}.named.so"
    _compile(compiler, source, named, flags, (str(other), "-Wl,-rpath,$ORIGIN") if other else ())
    path = folder / f"{name}.so"
    shutil.copy(named, path)
    if finish:
        subprocess.run(["strip", "--strip-all", path], check=True)
    return DispatchLibrary(batch, path, named, other, (*flags, finish))


def _compile(compiler: list[str], source: str, output: Path, flags: tuple[str, ...], more: tuple[str, ...]) -> None:
    command = [
        *compiler,
        "-shared",
        "-fPIC",
        "-w",
        "-march=x86-64",
        *flags,
        "-o",
        str(output),
        "-",
        "-x",
        "none",
        *more,
    ]
    done = subprocess.run(command, input=source, text=True, capture_output=True, check=False)
    assert not done.returncode, f"{' '.join(command)}\n{done.stderr[:2000]}"


# a line is a library, then programs as "number:entry,entry"; a signal ends one program, or the loading of the library
_HOST = """
#include <dlfcn.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
static sigjmp_buf back;
static void caught(int number) { siglongjmp(back, number); }
static char *programs[64];
static int count;
static void say(int from, int end) { for (int i = from; i < count; i++) printf("%d %d\\n", atoi(programs[i]), end); }
int main(void) {
    static char line[1 << 20];
    while (fgets(line, sizeof line, stdin)) {
        char *path = strtok(line, " \\n"), *rest;
        count = 0;
        while ((rest = strtok(0, " \\n"))) programs[count++] = rest;
        fflush(stdout);
        if (fork()) { int status; wait(&status); continue; }
        for (int i = 1; i < 16; i++) signal(i, caught);
        int end = sigsetjmp(back, 1);
        if (end) { say(0, end); fflush(stdout); _exit(0); }
        void *library = dlopen(path, RTLD_NOW);
        if (!library) { fprintf(stderr, "%s\\n", dlerror()); _exit(9); }
        static int at; static volatile int done;
        for (at = 0; at < count; at++) {
            static char *name, *save;
            static int worst;
            worst = 0;
            for (name = strtok_r(strchr(programs[at], ':') + 1, ",", &save); name; name = strtok_r(0, ",", &save))
                if ((end = sigsetjmp(back, 1)) == 0) {
                    int inputs[] = {0, 1, 2, 3, 7, 8, -1, 1000};
                    int (*entry)(int) = (int (*)(int))dlsym(library, name);
                    if (!entry) { fprintf(stderr, "no %s\\n", name); _exit(9); }
                    for (int i = 0; i < 8; i++) entry(inputs[i]);
                } else if (worst != SIGILL) worst = end;
            printf("%d %d\\n", atoi(programs[at]), worst);
        }
        fflush(stdout);
        _exit(0);
    }
}
"""


def illegal(built: Sequence[DispatchLibrary], folder: Path, processor: str) -> dict[int, int]:
    """How each program ends on *processor*: the number of the signal, or 0."""
    host = folder / "host"
    if not host.exists():
        subprocess.run(["gcc", "-O1", "-w", "-x", "c", "-", "-o", host, "-ldl"], input=_HOST, text=True, check=True)
    lines = []
    for library in built:
        programs = (f"{program.number}:{','.join(program.entries)}" for program in library.programs)
        lines.append(f"{library.path} {' '.join(programs)}")
    command = ["qemu-x86_64", "-cpu", processor, str(host)]
    # glibc's own functions for AVX2 use BMI1 without asking for it
    environment = {**os.environ, "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2,-AVX2_Usable"}
    done = subprocess.run(
        command, input="\n".join(lines) + "\n", text=True, capture_output=True, check=True, env=environment
    )
    found = {int(number): int(signal) for number, signal in (line.split() for line in done.stdout.splitlines())}
    assert len(found) == sum(len(library.programs) for library in built), done.stderr[:2000]
    return found
