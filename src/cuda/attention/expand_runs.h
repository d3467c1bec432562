// Works out where everything of a sealed run lies (format/packed_layout.h), as the kernels of a GPU
// read it.
#pragma once

#include <cstddef>

#include "cuda/kernels/attend/expand.h"
#include "format/rows/block_layout.h"
#include "machine/sealed_runs.h"

namespace kvlathe {

// What a head's ids stand for on the GPU; codebooks are the host's.
struct ExpandAddresses {
  const std::byte* record = nullptr;
  const std::byte* layer_record = nullptr;
  // Where the format has them.
  const Codebook* key_book = nullptr;
  const Codebook* value_book = nullptr;
  const float* key_scales = nullptr;  // LayerCodebooks::key_scales of the head
  // KeyRotation, of block 0 of the head, where the format keeps keys before RoPE.
  const float* cos = nullptr;
  const float* sin = nullptr;
};

// Whether blocks of such a head can be expanded: all but those whose runs bring their bases.
bool CanExpand(const SealedHead& head);

// Of one of the head's runs. The head's own addresses (runs, codebooks, rotation) are not read.
cuda::ExpandRun MakeExpandRun(const BlockShape& shape, const SealedHead& head, const SealedRun& run,
                              const ExpandAddresses& at);
// Of the blocks that hold coded rows.
cuda::ExpandRun MakeOpenRun(const BlockShape& shape, const OpenBlocks& open);

// For PromptParams.
cuda::WindowTables MakeWindowTables();

}  // namespace kvlathe
