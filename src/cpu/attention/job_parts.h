// Jobs as the planner of attention takes them on CPUs: whole, or cut by the KV heads of the model
// that a head of the cache joins, where blocks are rebuilt for each of these (rebuilt.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cpu/attention/addresses.h"
#include "cpu/attention/partial.h"
#include "cpu/attention/rebuilt.h"
#include "cpu/memory/cpu_device.h"
#include "machine/attention/head_job.h"
#include "machine/attention/plan.h"

namespace kvlathe {

// A job, or its query heads that share a KV head of the model. Rows of a part are numbered as those
// of a job with so many heads.
struct JobPart {
  int job_idx = 0;
  int map = -1;  // of the KV head; negative: all of the job

  bool is_rebuilt() const { return map >= 0; }
  // Query heads.
  int Group(const HeadJob& job) const {
    return is_rebuilt() ? job.gqa_group / static_cast<int>(job.rebuilt.keys.size()) : job.gqa_group;
  }
  int FirstHead(const HeadJob& job) const { return is_rebuilt() ? map * Group(job) : 0; }
};

// Lists the parts of all jobs and their sizes. Blocks are rebuilt only if `rebuilds`: a row has
// other bits then, and without BF16 dots nobody has measured it.
void ListParts(std::span<const HeadJob> jobs, int n_workers, bool rebuilds,
               std::vector<JobPart>* parts, std::vector<JobSize>* sizes);

// The row `row` of rows that are `stride` elements apart.
const std::byte* RowAt(const void* rows, int64_t row, int64_t stride, DType row_type);

// The queries of a rebuilt part from first_token on.
RebuiltQueries QueriesOfPart(const HeadJob& job, const JobAddresses& at, const JobPart& part,
                             int first_token);

// The queries of an item's rows as sinks want them, before any basis.
struct SinkQueries {
  const std::byte* q;
  int64_t stride;  // elements from row to row
  int group;       // rows of a token
};
// `scratch` has PartScratchBytes.
SinkQueries QueriesOfSink(const HeadJob& job, const JobAddresses& at, const JobPart& part,
                          const WorkItem& item, std::byte* scratch);

// What a part needs for items of n_rows rows at most: for AttendRebuilt, and then for its sinks.
int64_t PartScratchBytes(const HeadJob& job, const JobPart& part, int n_rows);

// Sets lost[i] to what HeadJob::lost_keys would add to every product of row row_begin + i of a part
// and a key.
void FindLostProducts(const CpuAccess& own, const HeadJob& job, const JobPart& part, int row_begin,
                      std::span<float> lost);

// Adds what the sink logits of the job's query heads count for to the complete results of such
// rows, as the partial result of one entry whose value is 0. Logits are less by what all scores of
// a row have lost, unless a cap has given it back to them.
void AddSinkLogits(const CpuAccess& own, const HeadJob& job, const JobPart& part, int row_begin,
                   const ScoreRule& rule, const PartialRows& partial, int n_rows);

// Writes rows [row_begin, row_begin + n_rows) of a part's output; they need not be whole tokens.
void WriteRows(const CpuAccess& own, const HeadJob& job, const JobPart& part, int row_begin,
               int n_rows, const PartialRows& partial);

}  // namespace kvlathe
