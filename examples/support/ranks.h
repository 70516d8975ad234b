// Several ranks in one example: the first speaks, all agree.
#pragma once

#include <sluice/sluice.h>

#include <cstdio>
#include <string>

namespace sluice::examples {

/// From here on only rank 0 writes to stdout.
void only_first_prints(const Communicator& ranks);
/// stderr on rank 0, a stream that leads nowhere on the others.
std::FILE* first_stderr(const Communicator& ranks);
/// A number of rank 0, on all ranks: what depends on clocks and files, like when to stop.
double of_first(double value, const Communicator& ranks);
/// learning_text() of corpus.h; CommunicationError on all ranks unless all have the same.
std::string common_text(const std::string& path, const Communicator& ranks);
/// What was sent since the last call, as lines of text; empty alone.
std::string traffic_table(const Traffic& traffic);

}  // namespace sluice::examples
