/* SPDX-License-Identifier: Apache-2.0 */
/* Start of a program on a 32-bit RISC-V with floating point. */

#include "board.h"

extern uint32_t bss_start[], bss_end[];

static void fault(void) { board_exit(3); }

static __attribute__((used)) void start_program(void) {
  for (volatile uint32_t* to = bss_start; to != bss_end;) *to++ = 0;
  __asm__ volatile("csrw mtvec, %0" : : "r"(fault));
  board_exit(main());
}

__attribute__((naked, section(".vectors"))) void reset(void) {
  __asm__ volatile(
      "la sp, stack_top\n"
      "li t0, 0x2000\n csrs mstatus, t0\n" /* FS: floating point */
      "j start_program");
}
