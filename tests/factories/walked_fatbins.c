/* Load DLLs as Windows does, and walk the fatbins that their wrappers lead to: a line for each entry.

   walk.exe A.dll B.dll ... -> "wrapper 0 kind 2 arch 90 bytes 1234 hash 0123456789abcdef" */
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <windows.h>

static uint64_t hash(const uint8_t *bytes, uint64_t size) {
    uint64_t value = 14695981039346656037ull;
    for (uint64_t place = 0; place < size; place++) value = (value ^ bytes[place]) * 1099511628211ull;
    return value;
}

static void container(int number, const uint8_t *start) {
    uint32_t magic, header;
    uint64_t size, payload;
    uint16_t head, kind;
    uint32_t arch;
    memcpy(&magic, start, 4);
    memcpy(&head, start + 6, 2);
    memcpy(&size, start + 8, 8);
    if (magic != 0xBA55ED50u) { printf("wrapper %d leads to %08x\n", number, magic); return; }
    for (const uint8_t *entry = start + head, *end = entry + size; entry < end;) {
        memcpy(&kind, entry, 2);
        memcpy(&header, entry + 4, 4);
        memcpy(&payload, entry + 8, 8);
        memcpy(&arch, entry + 28, 4);
        printf("wrapper %d kind %d arch %u bytes %llu hash %016llx\n", number, kind, arch,
               (unsigned long long)payload, (unsigned long long)hash(entry + header, payload));
        entry += header + payload;
    }
}

int main(int count, char **names) {
    for (int each = 1; each < count; each++) {
        HMODULE library = LoadLibraryExA(names[each], NULL, DONT_RESOLVE_DLL_REFERENCES);
        if (!library) { printf("%s: not loaded, error %lu\n", names[each], GetLastError()); return 1; }
        const uint8_t *base = (const uint8_t *)library;
        const IMAGE_NT_HEADERS64 *headers = (const void *)(base + ((const IMAGE_DOS_HEADER *)base)->e_lfanew);
        const IMAGE_SECTION_HEADER *sections = IMAGE_FIRST_SECTION(headers);
        int number = 0;
        for (int index = 0; index < headers->FileHeader.NumberOfSections; index++) {
            if (strncmp((const char *)sections[index].Name, ".nvFatBi", 8)) continue;
            const uint8_t *start = base + sections[index].VirtualAddress;
            for (uint32_t place = 0; place + 24 <= sections[index].Misc.VirtualSize; place += 8) {
                uint32_t magic;
                uint64_t data;
                memcpy(&magic, start + place, 4);
                memcpy(&data, start + place + 8, 8);
                if (magic == 0x466243B1u) container(number++, (const uint8_t *)data);
            }
        }
        printf("%d wrappers\n", number);
    }
    return 0;
}
