// Where the rows of a block lie, as kernels of attention read them: PackedShape
// (format/packed_layout.h) worked out once on the host.
#pragma once

#include <cstdint>
#include <optional>

#include "format/packed_layout.h"

namespace kvlathe::cuda {

// How the words of a side become numbers.
enum class Reading : int32_t {
  kRows,     // Bf16
  kNumbers,  // codes that count even steps
  kUnits,    // unit codes (format/split_bits/unit_codes.h)
};

enum class Scales : int32_t {
  kNone,
  kToken,    // [groups of channels][parts][kBlockSize] F16
  kChannel,  // in the run record: [groups of tokens][2][rank] F16
  kByte,     // one for each token, ScaleOfByte
};

// Tiles are 16 channels.
struct TileSegment {
  int32_t bits = 0;
  int32_t n_tiles = 0;
  int32_t codes = 0;  // bytes from the start of the block
};

struct SideLayout {
  Reading reading = Reading::kRows;
  Scales scales = Scales::kNone;
  int32_t scales_at =
      0;  // bytes from the start of the block, or of the block's part of the layer record
  int32_t in_layer = 0;      // whether scales lie in the layer record
  int32_t group_tiles = 0;   // that share a scale of a token
  int32_t group_tokens = 0;  // that share one of a channel; a multiple of kBlockSize or a divisor
  int32_t is_symmetric = 0;
  int32_t unit = 0;  // of unit codes: a StoredUnit
  int32_t n_tiles = 0;
  int32_t n_segments = 0;
  TileSegment segments[kSplitBits.size()] = {};
};

struct AttendLayout {
  SideLayout k, v;
  int32_t n_bytes = 0;  // of a block
};

// Of plain rows in Bf16.
AttendLayout PlainLayout(const BlockShape& shape);
// Of sealed blocks; none where there is no reader: repairs, tables, codebooks, rotations, rows with
// one side, F32.
std::optional<AttendLayout> LayoutOfRun(const PackedShape& shape);
// Of open blocks of coded rows (format/split_bits/coded_rows.h).
AttendLayout CodedLayout(const BlockShape& shape);

// What windows of unit codes stand for, in F16, by StoredUnit and bits less one.
struct AttendTables {
  uint16_t values[2][5][kCodeWindows];
};
AttendTables MakeAttendTables();

}  // namespace kvlathe::cuda
