/* The contract as C11 sees it: its layout, and a plug-in that uses every function and macro of it. */
#include "abi_layout.h"

SHOAL_MULTIVERSION
static void several_instruction_sets(uint8_t *out, uint64_t count) {
    for (uint64_t i = 0; i < count; i++)
        out[i] = 1;
}

static void step(shoal_envs *envs, uint64_t begin, uint64_t end) {
    several_instruction_sets(envs->terminated + begin, end - begin);
    shoal_dtype_step(envs, begin, end);
}

int a_symbol_nobody_exports;

const shoal_entry_v1 shoal_entry = {
    .abi_major = SHOAL_ABI_MAJOR,
    .abi_minor = SHOAL_ABI_MINOR,
    .name = "Abi-v0",
    .options = OPTIONS,
    .num_options = 1,
    .describe = describe,
    .init = init,
    .reset = shoal_dtype_reset,
    .step = step,
    .close = finish,
    .get_extension = get_extension,
};
