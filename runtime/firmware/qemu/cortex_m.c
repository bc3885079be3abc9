/* SPDX-License-Identifier: Apache-2.0 */
/* Start of a program on a Cortex-M: the vector table, the floating-point unit, and static memory.
 */

#include "board.h"

extern uint32_t data_source[], data_start[], data_end[], bss_start[], bss_end[], stack_top[];

void reset(void);

static void fault(void) { board_exit(3); }

__attribute__((section(".vectors"), used)) static const void* const vectors[16] = {
    stack_top,          (const void*)reset, (const void*)fault, (const void*)fault,
    (const void*)fault, (const void*)fault, (const void*)fault};

void reset(void) {
  *(volatile uint32_t*)0xe000ed88 |= 15u << 20; /* CPACR: floating point */
  __asm__ volatile("dsb\n isb");
  const uint32_t* from = data_source;
  for (volatile uint32_t* to = data_start; to != data_end;) *to++ = *from++;
  for (volatile uint32_t* to = bss_start; to != bss_end;) *to++ = 0;
  board_exit(main());
}
