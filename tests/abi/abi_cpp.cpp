/* The same as C++17 sees it: the same layout, and a plug-in whose entry has its C name. */
#include "abi_layout.h"

const shoal_entry_v1 shoal_entry = {
    SHOAL_ABI_MAJOR,   SHOAL_ABI_MINOR,  "Abi-v0", OPTIONS,       1, describe, init,
    shoal_dtype_reset, shoal_dtype_step, finish,   get_extension,
};
