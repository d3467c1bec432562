// The program kvlathe-trainer has the verbs of `kvlathe retrofit` that need libtorch. It is a
// program of its own, so that nothing else waits for libtorch to load.
#include <malloc.h>

#include "verbs.h"

namespace kvlathe {
namespace {

void AddVerbs(RetrofitVerbs* verbs) {
  AddPretrainVerb(verbs);
  AddDmcVerb(verbs);
  AddDmsVerb(verbs);
  AddGqaVerb(verbs);
  AddFisherVerb(verbs);
}

}  // namespace
}  // namespace kvlathe

int main(int argc, char** argv) {
  // Activations of tens of megabytes come and go in every step. Giving them back to the system each
  // time costs a fifth of the run in page faults.
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  mallopt(M_TOP_PAD, 256 << 20);
  return kvlathe::RunVerbs(argc, argv, kvlathe::AddVerbs);
}
