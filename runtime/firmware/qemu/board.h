/* SPDX-License-Identifier: Apache-2.0 */
/* What a program on a board that qemu emulates can do: print, count instructions, and end. */

#ifndef EDGERNN_BOARD_H_
#define EDGERNN_BOARD_H_

#include <stdint.h>

int main(void);

/* Prints text, and a number in hexadecimal with a space after it. */
void board_print(const char* text);
void board_print_hex(uint32_t number);

/* Starts to count, and returns the count since then: instructions with `-icount shift=0`, in units
 * that board_unit() finds. */
void board_start_count(void);
uint32_t board_count(void);

/* Instructions per unit of board_count(), times 256. */
uint32_t board_unit(void);

/* Ends the program and the emulator. */
void board_exit(int status);

#endif /* EDGERNN_BOARD_H_ */
