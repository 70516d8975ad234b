// The program of docs/guide/09-ranks.md for processes, as the page has it.
#include "docs_guide_09-ranks.cpp"

TEST_CASE("guide: a program for processes") { CHECK(docs_guide_09_ranks_md::program_2::program() == 0); }
