// The command of a build without CUDA.
#include "kvlathe/program/program.h"

int main(int argc, char** argv) { return kvlathe::RunProgram(argc, argv); }
