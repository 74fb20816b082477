// A stack machine of 16 bits with a program of its own, for an iCE40: its output register drives the pins.
module stack_machine(input clk, input reset, input [3:0] keys, output reg [7:0] leds);
    localparam PUSH = 3'd0, ADD = 3'd1, SUB = 3'd2, DUP = 3'd3, SWAP = 3'd4, OUT = 3'd5, BRANCH = 3'd6, SHIFT = 3'd7;

    reg [15:0] top, second;
    reg [15:0] stack [0:15];
    reg [3:0] depth;
    reg [5:0] pc;
    reg [10:0] program_rom [0:63];
    wire [10:0] instruction = program_rom[pc];
    wire [2:0] operation = instruction[10:8];
    wire [7:0] operand = instruction[7:0];

    integer i;
    initial begin
        for (i = 0; i < 64; i = i + 1)
            program_rom[i] = {PUSH, i[7:0]};
        program_rom[0] = {PUSH, 8'd1};
        program_rom[1] = {PUSH, 8'd1};
        program_rom[2] = {DUP, 8'd0};
        program_rom[3] = {OUT, 8'd0};
        program_rom[4] = {SWAP, 8'd0};
        program_rom[5] = {DUP, 8'd1};
        program_rom[6] = {ADD, 8'd0};
        program_rom[7] = {SHIFT, 8'd1};
        program_rom[8] = {SUB, 8'd3};
        program_rom[9] = {BRANCH, 8'd2};
        program_rom[10] = {BRANCH, 8'd0};
    end

    wire [15:0] below = stack[depth];
    wire [15:0] sum = second + top;
    wire [15:0] product = top * {12'd0, keys};

    always @(posedge clk) begin
        if (reset) begin
            pc <= 0;
            depth <= 0;
            top <= 0;
            second <= 0;
            leds <= 0;
        end else begin
            pc <= pc + 1;
            case (operation)
                PUSH: begin
                    stack[depth + 4'd1] <= second;
                    depth <= depth + 1;
                    second <= top;
                    top <= {8'd0, operand};
                end
                ADD: begin
                    top <= sum;
                    second <= below;
                    depth <= depth - 1;
                end
                SUB: begin
                    top <= second - top - operand;
                    second <= below;
                    depth <= depth - 1;
                end
                DUP: begin
                    stack[depth + 4'd1] <= second;
                    depth <= depth + 1;
                    second <= operand[0] ? product : top;
                end
                SWAP: begin
                    top <= second;
                    second <= top;
                end
                OUT: leds <= top[7:0] ^ top[15:8];
                BRANCH: if (top != 0) pc <= operand[5:0];
                SHIFT: top <= {top[14:0], ^(top & 16'hb400)};
            endcase
        end
    end
endmodule
