// Opens models for the verbs: what the library tells of its work goes to standard error.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/status.h"
#include "kvlathe/options.h"
#include "runtime/open_options.h"
#include "runtime/workspace.h"

namespace kvlathe {

// What the options say to the library, with progress and notes on standard error.
StatusOr<OpenOptions> OpenOptionsOf(const ModelOptions& options);

// FindModel, with these options' way to tell: for what reads a model's files before it is opened.
StatusOr<std::string> PathOfModel(const std::string& named);

// Workspace::Open and the others, with these options.
StatusOr<std::unique_ptr<Workspace>> OpenWorkspace(const ModelOptions& options);
StatusOr<std::unique_ptr<Workspace>> OpenRandomWorkspace(const std::string& config_path,
                                                         const ModelOptions& options,
                                                         std::optional<double> compression = {});

// One line on standard error.
void PrintNote(const Note& note);
// The same, where there is something to say.
void PrintNote(Note::Kind kind, const std::optional<std::string>& text);

// Progress on standard error, for what takes long: a bar on a terminal, elsewhere a line every ten
// seconds.
Progress TerminalProgress();

}  // namespace kvlathe
