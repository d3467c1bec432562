// Kernels are written for these instruction sets, and this says which of them the process uses.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace kvlathe {

// Ordered: a machine that has one has all before it.
enum class Isa {
  kScalar,      // portable C++
  kAvx2,        // AVX2, FMA and F16C; products of BF16 numbers in F32
  kAvx512Bf16,  // AVX-512 F/BW/DQ/VL, VBMI, VBMI2 and VNNI, and BF16 dot products
  kAmx,         // AVX-512 BF16 and AMX-BF16 tiles, with the kernel's permission to use them
};

std::string_view IsaName(Isa isa);  // "scalar", "avx2", "avx512", "amx"

// The processors as the system calls them, and the instruction set: "AMD EPYC 9654 (avx512)".
std::string ProcessorName(Isa isa);

// Every instruction set this machine has, kScalar first. Asks the kernel for AMX permission once.
const std::vector<Isa>& AvailableIsas();

// The best one, or what the environment variable KVLATHE_ISA names.
// Fails with kInvalidArgument on an unknown name or one that the machine lacks.
StatusOr<Isa> SelectIsa();

// The first-level data cache of a core; 0 where the system does not tell.
int64_t L1DataBytes();

// Dots of bytes in vectors of 256 bits, which some machines with kAvx2 have.
bool HasAvxVnni();

// AMX-INT8, products of bytes in tiles, beside AMX-BF16 (kAmx).
bool HasAmxInt8();

constexpr bool HasBf16Dots(Isa isa) { return isa >= Isa::kAvx512Bf16; }

}  // namespace kvlathe
