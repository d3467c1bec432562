// The command, but for which machines its build has (runtime/machines/machine_choice.h).
#pragma once

namespace kvlathe {

// Runs what the command line says and returns the status to exit with.
int RunProgram(int argc, char** argv);

}  // namespace kvlathe
