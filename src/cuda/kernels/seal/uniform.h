// Seals even steps, tables and codebooks on a GPU: scales and codes, with the bytes that the CPU
// writes (cpu/kernels/seal/seal.h).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/kernels/seal/sealed_head.h"
#include "format/table_codes/code_table.h"

namespace kvlathe::cuda {

struct UniformParams {
  SealKernelParams all;
  CodedSide k, v;
  bool has_table = false;  // codes of both sides are those of `steps`, under scales of a byte
  TableSteps steps;
  float table_unit = 1;
  bool has_codebook = false;  // codes are those of SealedModel::books
  // Blocks of K that share the scales of their channels begin at these; kChannel only.
  const SealedPlace* spans = nullptr;
  int n_spans = 0;
  int n_span_parts = 1;  // among which the channels of a span are shared out
  // Blocks of a layer that share the scales of their tokens, by its first head; kTokenLayer only.
  const SealedPlace* layer_places = nullptr;
  int n_layer_places = 0;
};

// Sets SealKernelParams::not_finite where rows that are not coded hold NaN or infinity.
void CheckRows(cudaStream_t stream, const SealKernelParams& params);
void SealUniform(cudaStream_t stream, const UniformParams& params);

}  // namespace kvlathe::cuda
