// A global store of 16 bytes per thread. (A uint4 assigned through a pointer may compile to four stores of 4 bytes: transpose.cuh took
// twice as long.)
#pragma once

namespace jitsparse::ptx {

__device__ __forceinline__ void store(void* to, const unsigned (&words)[4]) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};\n" ::"l"(to), "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
               : "memory");
}

}  // namespace jitsparse::ptx
