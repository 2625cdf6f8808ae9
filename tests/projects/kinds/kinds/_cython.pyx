# cython: language_level=3
cdef extern from "level.h":
    const char *LEVEL


cdef class Numbers:
    cdef double numbers[4096]

    def total(self, int count):
        cdef double found = 0
        cdef int i
        for i in range(count):
            self.numbers[i] = i
        for i in range(count):
            found += self.numbers[i]
        return found


def level():
    return LEVEL.decode()


def total(int count):
    return Numbers().total(count)
