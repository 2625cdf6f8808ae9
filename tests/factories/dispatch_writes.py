"""Ways in which a program keeps an answer and something else writes to it, or only near it, as in `dispatch_programs`.

`run` asks; `more` writes first, to the answer itself in those that are wrong whatever the test is.
"""

# ruff: noqa: E501  # C code in strings

_KEPT = """static struct cpu@ { int vendor, has; char name[48]; } cpu@;
        __attribute__((constructor)) static void init@(void) { cpu@.vendor = 3; cpu@.has = TEST; }
        NOINLINE static int inner@(int x) { return cpu@.has ? YES@(x) : NO@(x); } int run@(int x) { return inner@(x); }
        """
_ALONE = """static int has@, spare@; __attribute__((constructor)) static void init@(void) { has@ = TEST; }
        NOINLINE static int inner@(int x) { return has@ ? YES@(x) : NO@(x); } int run@(int x) { return inner@(x); }
        """
_HEAP = """static struct ctx@ { char name[300]; int has; } *kept@;
        __attribute__((constructor)) static void init@(void) { kept@ = calloc(1, sizeof *kept@); kept@->has = TEST; }
        NOINLINE static int inner@(struct ctx@ *c, int x) { return c->has ? YES@(x) : NO@(x); } int run@(int x) { return inner@(kept@, x); }
        """

# what writes to the answer: wrong whatever the test is
OVERWRITTEN = {
    "set-by-index": f"{_KEPT} NOINLINE static void set@(int *p, int i) {{ p[i] = 1; }} int more@(int x) {{ set@(&cpu@.vendor, x & 3); return inner@(x); }}",
    "set-by-index-alone": """static int flags@[8]; __attribute__((constructor)) static void init@(void) { flags@[2] = TEST; flags@[5] = 4; }
        NOINLINE static int inner@(int x) { return flags@[2] ? YES@(x) : NO@(x); } NOINLINE static void set@(int *p, int i) { p[i] = 1; }
        int run@(int x) { return inner@(x); } int more@(int x) { set@(flags@, x & 7); return inner@(x); }""",
    "set-by-index-behind": """static struct cpu@ { int notes[4], has; } cpu@; __attribute__((constructor)) static void init@(void) { cpu@.has = TEST; }
        NOINLINE static int inner@(int x) { return cpu@.has ? YES@(x) : NO@(x); } NOINLINE static void note@(struct cpu@ *p, int i) { ((int *)p)[i] = 1; }
        int run@(int x) { return inner@(x); } int more@(int x) { note@(&cpu@, x & 4); return inner@(x); }""",
    "set-by-index-directly": f"{_KEPT} int more@(int x) {{ ((int *)&cpu@)[x & 3] = 1; return inner@(x); }}",
    "set-by-walk": f"{_KEPT} NOINLINE static void fill@(char *p, char *end) {{ while (p < end) *p++ = 1; }} int more@(int x) {{ fill@((char *)&cpu@, (char *)(&cpu@ + 1)); return inner@(x); }}",
    "set-by-walk-directly": f"{_KEPT} int more@(int x) {{ volatile char *p = (char *)&cpu@; for (int i = 0; i < 8; i++) *p++ = 1; return inner@(x); }}",
    "set-by-global-pointer": f"{_ALONE} static int *at@ = &spare@; __attribute__((constructor)) static void place@(void) {{ at@ = &has@; }} int more@(int x) {{ *at@ = 1; return inner@(x); }}",
    "set-by-loaded-pointer": f"{_ALONE} int *at@ = &has@; int more@(int x) {{ *at@ = 1; return inner@(x); }}",
    "set-by-pointer-to-struct": f"{_KEPT} static struct cpu@ *now@; __attribute__((constructor)) static void place@(void) {{ now@ = &cpu@; }} int more@(int x) {{ now@->has = 1; return inner@(x); }}",
    "set-by-field": f"{_ALONE} static struct job@ {{ int tag, *to; }} job@; __attribute__((constructor)) static void place@(void) {{ job@.tag = 3; job@.to = &has@; }} NOINLINE static void work@(struct job@ *j) {{ *j->to = j->tag; }} int more@(int x) {{ work@(&job@); return inner@(x); }}",
    "set-by-field-on-heap": f"{_ALONE} static struct job@ {{ int tag, *to; }} *job@; __attribute__((constructor)) static void place@(void) {{ job@ = malloc(sizeof *job@); job@->tag = 3; job@->to = &has@; }} NOINLINE static void work@(struct job@ *j) {{ *j->to = j->tag; }} int more@(int x) {{ work@(job@); return inner@(x); }}",
    "set-by-field-on-stack": f"{_ALONE} struct job@ {{ int tag, *to; }}; NOINLINE static void work@(struct job@ *j) {{ *j->to = j->tag; }} int more@(int x) {{ struct job@ job = {{3, &has@}}; work@(&job); return inner@(x); }}",
    "set-by-vector": f'{_KEPT} NOINLINE static void put@(void *p) {{ __asm__ volatile("pcmpeqd %%xmm0, %%xmm0; movups %%xmm0, (%0)" :: "r"(p) : "xmm0", "memory"); }} int more@(int x) {{ put@(&cpu@); return inner@(x); }}',
    "set-by-exchange": f"{_ALONE} int more@(int x) {{ __atomic_exchange_n(&has@, 1, __ATOMIC_SEQ_CST); return inner@(x); }}",
    "set-by-exchange-behind": f"{_ALONE} NOINLINE static int swap@(int *p, int v) {{ return __atomic_exchange_n(p, v, __ATOMIC_SEQ_CST); }} int more@(int x) {{ x ^= swap@(&has@, 1); return inner@(x); }}",
    "set-by-string": f'{_KEPT} NOINLINE static void put@(void *p, long n) {{ __asm__ volatile("rep stosb" : "+D"(p), "+c"(n) : "a"(1) : "memory"); }} int more@(int x) {{ put@(&cpu@, 8); return inner@(x); }}',
    "set-by-bit": f'{_KEPT} int more@(int x) {{ long at = 32; __asm__ volatile("bts %1, %0" : "+m"(cpu@.vendor) : "r"(at) : "memory"); return inner@(x); }}',
    "set-by-memset": f"{_KEPT} int more@(int x) {{ memset(&cpu@, 1, sizeof cpu@); return inner@(x); }}",
    "set-by-memset-of-some": f"{_KEPT} int more@(int x) {{ memset(&cpu@, 1, x & 15); return inner@(x); }}",
    "set-by-memset-behind": f"{_KEPT} NOINLINE static void wipe@(struct cpu@ *c, int how) {{ memset(c, how, sizeof *c); }} int more@(int x) {{ wipe@(&cpu@, 1); return inner@(x); }}",
    "set-by-memset-of-pointer": f"{_KEPT} static struct cpu@ *now@; __attribute__((constructor)) static void place@(void) {{ now@ = &cpu@; }} int more@(int x) {{ memset(now@, 1, sizeof *now@); return inner@(x); }}",
    "set-by-memcpy": f'{_KEPT} static struct cpu@ all@ = {{3, 1, "all"}}; int more@(int x) {{ memcpy(&cpu@, &all@, sizeof cpu@); return inner@(x); }}',
    "set-by-memcpy-of-some": f'{_KEPT} static struct cpu@ all@ = {{3, 1, "all"}}; int more@(int x) {{ memcpy(&cpu@, &all@, x & 15); return inner@(x); }}',
    "set-by-copy-behind": f'{_KEPT} static struct cpu@ all@ = {{3, 1, "all"}}; NOINLINE static void copy@(struct cpu@ *to, const struct cpu@ *from) {{ *to = *from; }} int more@(int x) {{ copy@(&cpu@, &all@); return inner@(x); }}',
    "set-by-strcpy": """static char has@[8]; __attribute__((constructor)) static void init@(void) { has@[0] = TEST; }
        NOINLINE static int inner@(int x) { return has@[0] ? YES@(x) : NO@(x); } int run@(int x) { return inner@(x); }
        int more@(int x) { char text[8] = {'a' + (x & 7), 0}; strcpy(has@, text); return inner@(x); }""",
    "set-by-sscanf": f'{_ALONE} int more@(int x) {{ sscanf("7", "%d", &has@); return inner@(x); }}',
    "set-by-sscanf-of-field": f'{_KEPT} int more@(int x) {{ sscanf("7 8", "%d %d", &cpu@.vendor, &cpu@.has); return inner@(x); }}',
    "set-by-snprintf": f'{_KEPT} int more@(int x) {{ snprintf((char *)&cpu@, 16, "%s", "abcdefghijk"); return inner@(x); }}',
    "set-by-callback": f"{_KEPT} static int put@(const void *p, const void *q) {{ ((struct cpu@ *)p)->has = 1; return 0; }} int more@(int x) {{ bsearch(&cpu@, &spare_of_all, 1, 1, put@); return inner@(x); }}",
    "set-by-callback-alone": f"{_ALONE} static int put@(const void *p, const void *q) {{ *(int *)p = 1; return 0; }} int more@(int x) {{ bsearch(&has@, &spare@, 1, 1, put@); return inner@(x); }}",
    "set-by-called-pointer": f"""{_KEPT} static void put@(struct cpu@ *c) {{ c->has = 1; }} static void none@(struct cpu@ *c) {{ c->vendor = 1; }}
        static void (*const puts@[])(struct cpu@ *) = {{none@, put@}}; int more@(int x) {{ puts@[x & 1](&cpu@); return inner@(x); }}""",
    "set-by-result": f"{_KEPT} NOINLINE static struct cpu@ *get@(void) {{ return &cpu@; }} int more@(int x) {{ get@()->has = 1; return inner@(x); }}",
    "set-by-memset-of-result": f"{_KEPT} NOINLINE static struct cpu@ *get@(void) {{ return &cpu@; }} int more@(int x) {{ memset(get@(), 1, sizeof cpu@); return inner@(x); }}",
    "set-by-heap-index": f"{_HEAP} NOINLINE static void set@(char *p, int i) {{ p[i] = 1; }} int more@(int x) {{ set@(kept@->name, 300 * (x & 1)); return inner@(kept@, x); }}",
    "set-by-heap-memcpy": f'{_HEAP} int more@(int x) {{ static struct ctx@ all = {{"all", 1}}; memcpy(kept@, &all, sizeof all); return inner@(kept@, x); }}',
    "set-by-heap-field": f"{_HEAP} NOINLINE static void set@(struct ctx@ *c) {{ c->has = 1; }} int more@(int x) {{ set@(kept@); return inner@(kept@, x); }}",
    "set-by-heap-memset": f"{_HEAP} int more@(int x) {{ memset(kept@, 1, sizeof *kept@); return inner@(kept@, x); }}",
    "set-by-heap-sscanf": f'{_HEAP} int more@(int x) {{ sscanf("7", "%d", &kept@->has); return inner@(kept@, x); }}',
    "set-by-heap-callback": f"{_HEAP} static int put@(const void *p, const void *q) {{ ((struct ctx@ *)p)->has = 1; return 0; }} int more@(int x) {{ bsearch(kept@, &spare_of_all, 1, 1, put@); return inner@(kept@, x); }}",
}

# what writes before the answer is there, or beside it
WRITTEN_NEAR = {
    "near-memset": """static struct cpu@ { int vendor, has; char name[48]; } cpu@;
        __attribute__((constructor)) static void init@(void) { memset(&cpu@, 0, sizeof cpu@); cpu@.vendor = 3; cpu@.has = TEST; }
        int run@(int x) { return cpu@.has ? YES@(x) : NO@(x); }""",
    "near-memset-behind": """static struct cpu@ { int vendor, has; char name[48]; } cpu@;
        NOINLINE static void fill@(struct cpu@ *c) { memset(c, 0, sizeof *c); c->vendor = 3; c->has = TEST; }
        __attribute__((constructor)) static void init@(void) { fill@(&cpu@); }
        int run@(int x) { return cpu@.has ? YES@(x) : NO@(x); }""",
    "near-memcpy": """struct cpu@ { int vendor, has; char name[80]; }; static struct cpu@ cpu@;
        NOINLINE static void fill@(struct cpu@ *c) { c->vendor = 3; c->has = TEST; c->name[0] = 'a'; }
        __attribute__((constructor)) static void init@(void) { struct cpu@ c = {0}; fill@(&c); memcpy(&cpu@, &c, sizeof c); }
        int run@(int x) { return cpu@.has ? YES@(x) : NO@(x); }""",
    "near-vendor": """static struct cpu@ { char vendor[13]; int has; } cpu@;
        __attribute__((constructor)) static void init@(void) { unsigned a, b, c, d; __cpuid(0, a, b, c, d);
        memcpy(cpu@.vendor, &b, 4); memcpy(cpu@.vendor + 4, &d, 4); memcpy(cpu@.vendor + 8, &c, 4); cpu@.vendor[12] = 0; cpu@.has = TEST; }
        int run@(int x) { return cpu@.has ? YES@(x) : NO@(x); }""",
    "near-name": f'{_KEPT} int more@(int x) {{ snprintf(cpu@.name, sizeof cpu@.name, "cpu %d", x); return inner@(x) + cpu@.name[4]; }}',
    "near-counts": """static int counts@[16], has@; __attribute__((constructor)) static void init@(void) { has@ = TEST; }
        NOINLINE static void count@(int *p, int i) { p[i]++; }
        int run@(int x) { counts@[x & 15]++; count@(counts@, x & 7); return has@ ? YES@(x) : NO@(x); }""",
    "near-buffer": """static char buffer@[64]; static int has@; __attribute__((constructor)) static void init@(void) { has@ = TEST; }
        int run@(int x) { memset(buffer@, x, 64); return has@ ? YES@(x) : NO@(x) + buffer@[x & 63]; }""",
    "near-text": """static char text@[64]; static int has@; __attribute__((constructor)) static void init@(void) { has@ = TEST; }
        int run@(int x) { char from[8] = {'a' + (x & 7), 0}; strcpy(text@, from); sscanf("8", "%8s", text@ + 8); return has@ ? YES@(x) : NO@(x) + text@[x & 63]; }""",
    "near-compared": f"{_KEPT} static struct cpu@ none@; int more@(int x) {{ return memcmp(&cpu@, &none@, sizeof cpu@) ? inner@(x) : x; }}",
    "near-copied": f"{_KEPT} int more@(int x) {{ struct cpu@ c; memcpy(&c, &cpu@, sizeof c); return c.has ? YES@(x) : NO@(x + c.name[3]); }}",
    "near-printed": f'{_KEPT} int more@(int x) {{ char text[32]; snprintf(text, sizeof text, "%s %d", cpu@.name, cpu@.has); return inner@(x + text[1]); }}',
    "near-pointers": """static int has@, one@, two@, *at@; static struct job@ { int tag, *to; } jobs@[2] = {{3, &one@}, {4, &two@}};
        __attribute__((constructor)) static void init@(void) { has@ = TEST; at@ = &one@; }
        int run@(int x) { *at@ = x; *jobs@[x & 1].to = x; return has@ ? YES@(x) : NO@(x) + one@ + two@; }""",
    "near-heap-memset": """static struct ctx@ { char name[300]; int has; } *kept@;
        __attribute__((constructor)) static void init@(void) { kept@ = malloc(sizeof *kept@); memset(kept@, 0, sizeof *kept@); kept@->has = TEST; }
        NOINLINE static int inner@(struct ctx@ *c, int x) { return c->has ? YES@(x) : NO@(x); } int run@(int x) { return inner@(kept@, x); }""",
    "near-once": """static struct cpu@ { int vendor, has; char name[48]; } cpu@; static int once@;
        static void ask@(void) { memset(&cpu@, 0, sizeof cpu@); cpu@.vendor = 3; cpu@.has = TEST; }
        int run@(int x) { pthread_once(&once@, ask@); return cpu@.has ? YES@(x) : NO@(x); }""",
}
