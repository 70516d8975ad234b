#include <sluice/layers/table_rows.h>

namespace sluice::detail {

void add_linear_attention_rows(RowList& list) { linear_attention_rows(list); }

}  // namespace sluice::detail
