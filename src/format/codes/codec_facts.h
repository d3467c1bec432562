// Every codec answers here what the rest of the program asks of it: what the codes of its sides
// are, how wide rows may be, and what it wants of the cache around it. A codec is a struct in a
// folder of src/format with an overload of FactsOf beside it; packed_layout.h lists all codecs.
#pragma once

#include "format/codes/code_side.h"

namespace kvlathe {

// A codec fills in every field, so none has a default.
struct CodecFacts {
  PackedSide k, v;
  int most_channels;      // that a row may have
  bool keys_before_rope;  // K is sealed as it was before RoPE, and turned when it is read
  bool codes_open_rows;   // entries that are not sealed yet have 8-bit codes in place of rows
  bool has_classes;       // entries of the prompt are sorted into classes of different bits
  bool brings_bases;      // runs bring the bases of their rows, so blocks are made plain when read
  bool gathers_queries;   // heads keep Q^T Q until they have found their basis
  bool has_one_side;      // rows hold keys and values together (BlockShape::has_one_side)
};

}  // namespace kvlathe
