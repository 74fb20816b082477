;; What compiled scripts need at run time: memory, maps, and output. The emitted module starts with
;; these functions, so that their numbers stay what they are here; the exports below are only their
;; names for the compiler. Block types have at most one result: bodies are copied as they are.
;;
;; Memory: 0 arguments of fd_write, 32 digits, 64 the key of a map access, 512 what replaces an
;; instruction and its results, or a value that has no place in a map, 1024 output, 9216 strings and variables of the script, the engine's
;; buffer for strings if there is one, then the heap, which is never freed.
(module
  ;; Libraries.
  (import "wasi_snapshot_preview1" "fd_write" (func $fd_write (param i32 i32 i32 i32) (result i32)))
  ;; Ends the rule: the memory is full (0), an integer was divided by zero (1), the quotient is out of
  ;; range (2), the rule has taken too many steps (3), calls are nested too deeply (4), bytes are outside
  ;; of a library's memory (5).
  (func $fail (export "fail") (param i32) unreachable)
  (memory 1)
  (global $heap (export "heap") (mut i32) (i32.const 0))
  (global $pending (mut i32) (i32.const 0))
  ;; Stacks of frames and of instructions that have begun: address, number of entries, and room.
  ;; Each thread has its own: who calls exchanges these globals.
  (global $frames (export "thread:frames") (mut i32) (i32.const 0))
  (global $frame_count (export "thread:frame_count") (mut i32) (i32.const 0))
  (global $frame_room (export "thread:frame_room") (mut i32) (i32.const 0))
  (global $is_new (mut i32) (i32.const 0))
  (global $begun (export "thread:begun") (mut i32) (i32.const 0))
  (global $begun_count (export "thread:begun_count") (mut i32) (i32.const 0))
  (global $begun_room (export "thread:begun_room") (mut i32) (i32.const 0))
  ;; Map of strings: its index and entries, of 16 bytes: address and length, eight bytes each.
  (global $strings (mut i32) (i32.const 0))
  (global $string_count (mut i32) (i32.const 0))
  (global $string_room (mut i32) (i32.const 0))

  ;; Steps of the rule, where they are counted, and words of the stack that functions of the script
  ;; take.
  (global $steps (mut i32) (i32.const 0))
  (global $nesting (mut i32) (i32.const 0))
  (func (export "begin_steps")
    i32.const 0
    global.set $steps
    i32.const 0
    global.set $nesting)

  ;; A call of a function begins that may call itself, and ends. A stack of 512 KiB is enough.
  (func (export "enter_call") (param $words i32)
    global.get $nesting
    local.get $words
    i32.add
    global.set $nesting
    global.get $nesting
    i32.const 0x10000
    i32.gt_u
    if
      i32.const 4
      call $fail
    end)

  (func (export "leave_call") (param $words i32)
    global.get $nesting
    local.get $words
    i32.sub
    global.set $nesting)

  ;; A step: an iteration of a loop, or a call. 2^24 of them take a few hundredths of a second.
  (func (export "step")
    global.get $steps
    i32.const 0x1000000
    i32.ge_u
    if
      i32.const 3
      call $fail
    end
    global.get $steps
    i32.const 1
    i32.add
    global.set $steps)

  ;; Refuse operands of a division that would trap: the unsigned ones, the signed ones.
  (func (export "check_u64") (param $divisor i64)
    local.get $divisor
    i64.eqz
    if
      i32.const 1
      call $fail
    end)

  (func (export "check_s64") (param $dividend i64) (param $divisor i64) (param $least i64)
    local.get $divisor
    i64.eqz
    if
      i32.const 1
      call $fail
    end
    local.get $divisor
    i64.const -1
    i64.eq
    if
      local.get $dividend
      local.get $least
      i64.eq
      if
        i32.const 2
        call $fail
      end
    end)

  ;; Zeroed memory.
  (func $alloc (export "alloc") (param $size i32) (result i32)
    (local $start i32) (local $end i32) (local $pages i32)
    global.get $heap
    local.tee $start
    local.get $size
    i32.const 7
    i32.add
    i32.const -8
    i32.and
    i32.add
    local.tee $end
    local.get $start
    i32.lt_u
    if
      i32.const 0
      call $fail
    end
    local.get $end
    i32.const 16
    i32.shr_u
    i32.const 1
    i32.add
    memory.size
    i32.sub
    local.tee $pages
    i32.const 0
    i32.gt_s
    if
      ;; A quarter more than there is, if possible.
      memory.size
      i32.const 2
      i32.shr_u
      local.get $pages
      i32.add
      memory.grow
      i32.const -1
      i32.eq
      if
        local.get $pages
        memory.grow
        i32.const -1
        i32.eq
        if
          i32.const 0
          call $fail
        end
      end
    end
    local.get $end
    global.set $heap
    local.get $start)

  ;; The block of a match site, appended to a list: its first and last block. Block: next, function,
  ;; position, address and length of the event's name.
  (func (export "site") (param $list i32) (param $size i32) (param $fid i32) (param $pc i32)
      (param $event i32) (param $length i32) (result i32)
    (local $block i32) (local $last i32)
    local.get $size
    call $alloc
    local.tee $block
    local.get $fid
    i32.store offset=4
    local.get $block
    local.get $pc
    i32.store offset=8
    local.get $block
    local.get $event
    i32.store offset=12
    local.get $block
    local.get $length
    i32.store offset=16
    local.get $list
    i32.load offset=4
    local.tee $last
    if
      local.get $last
      local.get $block
      i32.store
    else
      local.get $list
      local.get $block
      i32.store
    end
    local.get $list
    local.get $block
    i32.store offset=4
    local.get $block)

  ;; The slot of an index in which a search for a key begins: the highest bits of its hash, so that
  ;; consecutive numbers and their multiples are in different slots.
  (func $hash (param $key i32) (param $words i32) (param $mask i32) (result i32)
    (local $hash i64)
    loop $next
      local.get $hash
      local.get $key
      i64.load
      i64.xor
      i64.const 0x9e3779b97f4a7c15
      i64.mul
      local.tee $hash
      local.get $hash
      i64.const 29
      i64.shr_u
      i64.xor
      local.set $hash
      local.get $key
      i32.const 8
      i32.add
      local.set $key
      local.get $words
      i32.const 1
      i32.sub
      local.tee $words
      br_if $next
    end
    local.get $hash
    i64.const 32
    i64.shr_u
    local.get $mask
    i64.extend_i32_u
    i64.const 1
    i64.add
    i64.mul
    i64.const 32
    i64.shr_u
    i32.wrap_i64)

  (func $equal (param $one i32) (param $other i32) (param $words i32) (result i32)
    loop $next
      local.get $one
      i64.load
      local.get $other
      i64.load
      i64.ne
      if
        i32.const 0
        return
      end
      local.get $one
      i32.const 8
      i32.add
      local.set $one
      local.get $other
      i32.const 8
      i32.add
      local.set $other
      local.get $words
      i32.const 1
      i32.sub
      local.tee $words
      br_if $next
    end
    i32.const 1)

  ;; Map: entries, index, capacity, count. The index has twice as many slots as entries, each zero or
  ;; one more than the number of an entry. An entry is a key and a value. The key is at 64.
  ;; The address of a key's value, or zero.
  (func $find (export "find") (param $map i32) (param $words i32) (param $entry_size i32) (result i32)
    (local $slot i32) (local $mask i32) (local $entry i32) (local $one i64) (local $two i64)
    (local $hash i64)
    local.get $map
    i32.load offset=8
    i32.eqz
    if
      i32.const 0
      return
    end
    local.get $map
    i32.load offset=8
    i32.const 1
    i32.shl
    i32.const 1
    i32.sub
    local.set $mask
    ;; The same for keys of one or two words, without calls.
    local.get $words
    i32.const 2
    i32.le_u
    if
      i32.const 64
      i64.load
      local.tee $one
      i64.const 0x9e3779b97f4a7c15
      i64.mul
      local.tee $hash
      local.get $hash
      i64.const 29
      i64.shr_u
      i64.xor
      local.set $hash
      local.get $words
      i32.const 2
      i32.eq
      if
        local.get $hash
        i32.const 72
        i64.load
        local.tee $two
        i64.xor
        i64.const 0x9e3779b97f4a7c15
        i64.mul
        local.tee $hash
        local.get $hash
        i64.const 29
        i64.shr_u
        i64.xor
        local.set $hash
      end
      local.get $hash
      i64.const 32
      i64.shr_u
      local.get $mask
      i64.extend_i32_u
      i64.const 1
      i64.add
      i64.mul
      i64.const 32
      i64.shr_u
      i32.wrap_i64
      local.set $slot
      loop $next
        local.get $slot
        local.get $mask
        i32.and
        local.tee $slot
        i32.const 2
        i32.shl
        local.get $map
        i32.load offset=4
        i32.add
        i32.load
        local.tee $entry
        i32.eqz
        if
          i32.const 0
          return
        end
        local.get $entry
        i32.const 1
        i32.sub
        local.get $entry_size
        i32.mul
        local.get $map
        i32.load
        i32.add
        local.tee $entry
        i64.load
        local.get $one
        i64.eq
        if
          local.get $words
          i32.const 1
          i32.eq
          local.get $entry
          i64.load offset=8
          local.get $two
          i64.eq
          i32.or
          if
            local.get $entry
            local.get $words
            i32.const 3
            i32.shl
            i32.add
            return
          end
        end
        local.get $slot
        i32.const 1
        i32.add
        local.set $slot
        br $next
      end
    end
    i32.const 64
    local.get $words
    local.get $mask
    call $hash
    local.set $slot
    loop $next
      local.get $slot
      local.get $mask
      i32.and
      local.tee $slot
      i32.const 2
      i32.shl
      local.get $map
      i32.load offset=4
      i32.add
      i32.load
      local.tee $entry
      i32.eqz
      if
        i32.const 0
        return
      end
      local.get $entry
      i32.const 1
      i32.sub
      local.get $entry_size
      i32.mul
      local.get $map
      i32.load
      i32.add
      local.tee $entry
      i32.const 64
      local.get $words
      call $equal
      if
        local.get $entry
        local.get $words
        i32.const 3
        i32.shl
        i32.add
        return
      end
      local.get $slot
      i32.const 1
      i32.add
      local.set $slot
      br $next
    end
    unreachable)

  ;; Adds an entry, whose key is not in the map, to the index.
  (func $index (param $map i32) (param $number i32) (param $words i32) (param $entry_size i32)
    (local $slot i32) (local $mask i32) (local $at i32)
    local.get $map
    i32.load offset=8
    i32.const 1
    i32.shl
    i32.const 1
    i32.sub
    local.set $mask
    local.get $number
    local.get $entry_size
    i32.mul
    local.get $map
    i32.load
    i32.add
    local.get $words
    local.get $mask
    call $hash
    local.set $slot
    loop $next
      local.get $slot
      local.get $mask
      i32.and
      local.tee $slot
      i32.const 2
      i32.shl
      local.get $map
      i32.load offset=4
      i32.add
      local.tee $at
      i32.load
      if
        local.get $slot
        i32.const 1
        i32.add
        local.set $slot
        br $next
      end
    end
    local.get $at
    local.get $number
    i32.const 1
    i32.add
    i32.store)

  ;; Twice the capacity.
  (func $grow (param $map i32) (param $words i32) (param $entry_size i32)
    (local $capacity i32) (local $entries i32) (local $number i32)
    local.get $map
    i32.load offset=8
    i32.const 1
    i32.shl
    local.tee $capacity
    i32.eqz
    if
      i32.const 8
      local.set $capacity
    end
    ;; 2^24 entries of at most 256 bytes are all of the address space.
    local.get $capacity
    i32.const 0x2000000
    i32.ge_u
    if
      i32.const 0
      call $fail
    end
    local.get $capacity
    i64.extend_i32_u
    local.get $entry_size
    i64.extend_i32_u
    i64.mul
    i64.const 0x7fffffff
    i64.gt_u
    if
      i32.const 0
      call $fail
    end
    local.get $capacity
    local.get $entry_size
    i32.mul
    call $alloc
    local.tee $entries
    local.get $map
    i32.load
    local.get $map
    i32.load offset=12
    local.get $entry_size
    i32.mul
    memory.copy
    local.get $map
    local.get $entries
    i32.store
    local.get $map
    local.get $capacity
    i32.const 3
    i32.shl
    call $alloc
    i32.store offset=4
    local.get $map
    local.get $capacity
    i32.store offset=8
    block $done
      loop $next
        local.get $number
        local.get $map
        i32.load offset=12
        i32.ge_u
        br_if $done
        local.get $map
        local.get $number
        local.get $words
        local.get $entry_size
        call $index
        local.get $number
        i32.const 1
        i32.add
        local.set $number
        br $next
      end
    end)

  ;; Makes room for an entry. If there is no memory, the rule goes on with a value that is not in the
  ;; map, and the script has failed: so rules that use maps need not catch anything.
  (func $make_room (param $map i32) (param $words i32) (param $entry_size i32) (result i32)
    (call $grow (local.get $map) (local.get $words) (local.get $entry_size))
    (i32.const 1))

  ;; The address of a key's value, which is zero if there was none.
  (func (export "slot") (param $map i32) (param $words i32) (param $entry_size i32) (result i32)
    (local $value i32) (local $entry i32)
    local.get $map
    local.get $words
    local.get $entry_size
    call $find
    local.tee $value
    if
      local.get $value
      return
    end
    local.get $map
    i32.load offset=12
    local.get $map
    i32.load offset=8
    i32.eq
    if
      local.get $map
      local.get $words
      local.get $entry_size
      call $make_room
      i32.eqz
      if
        i32.const 512
        i32.const 0
        i32.const 256
        memory.fill
        i32.const 512
        return
      end
    end
    local.get $map
    i32.load offset=12
    local.get $entry_size
    i32.mul
    local.get $map
    i32.load
    i32.add
    local.tee $entry
    i32.const 64
    local.get $words
    i32.const 3
    i32.shl
    memory.copy
    local.get $map
    local.get $map
    i32.load offset=12
    local.get $words
    local.get $entry_size
    call $index
    local.get $map
    local.get $map
    i32.load offset=12
    i32.const 1
    i32.add
    i32.store offset=12
    local.get $entry
    local.get $words
    i32.const 3
    i32.shl
    i32.add)

  ;; Room for one more entry of a stack: its address, which may be another one than before.
  (func $room (param $stack i32) (param $count i32) (param $room i32) (param $size i32) (result i32)
    (local $new i32)
    local.get $count
    local.get $room
    i32.lt_u
    if
      local.get $stack
      return
    end
    local.get $count
    i64.extend_i32_u
    local.get $size
    i64.extend_i32_u
    i64.mul
    i64.const 0x3fffffff
    i64.gt_u
    if
      i32.const 0
      call $fail
    end
    local.get $count
    i32.const 1
    i32.shl
    i32.const 16
    i32.add
    local.get $size
    i32.mul
    call $alloc
    local.tee $new
    local.get $stack
    local.get $count
    local.get $size
    i32.mul
    memory.copy
    local.get $new)

  ;; A frame begins: what remains of others at its place has ended, and so have those it called.
  (func $enter (export "enter") (param $frame i64) (param $size i32)
    block $done
      loop $next
        global.get $frame_count
        i32.eqz
        br_if $done
        global.get $frames
        global.get $frame_count
        i32.const 1
        i32.sub
        local.get $size
        i32.mul
        i32.add
        i64.load
        local.get $frame
        i64.gt_u
        br_if $done
        global.get $frame_count
        i32.const 1
        i32.sub
        global.set $frame_count
        br $next
      end
    end)

  ;; The variables of a frame, after its number, in an entry of this size. The innermost frame is the
  ;; last one; frames have descending numbers.
  (func (export "frame") (param $frame i64) (param $size i32) (result i32)
    (local $entry i32)
    i32.const 0
    global.set $is_new
    block $none
      loop $next
        global.get $frame_count
        i32.eqz
        br_if $none
        global.get $frames
        global.get $frame_count
        i32.const 1
        i32.sub
        local.get $size
        i32.mul
        i32.add
        local.tee $entry
        i64.load
        local.get $frame
        i64.eq
        if
          local.get $entry
          i32.const 8
          i32.add
          return
        end
        local.get $entry
        i64.load
        local.get $frame
        i64.gt_u
        br_if $none
        global.get $frame_count
        i32.const 1
        i32.sub
        global.set $frame_count
        br $next
      end
    end
    global.get $frames
    global.get $frame_count
    global.get $frame_room
    local.get $size
    call $room
    global.set $frames
    global.get $frame_count
    global.get $frame_room
    i32.ge_u
    if
      global.get $frame_count
      i32.const 1
      i32.shl
      i32.const 16
      i32.add
      global.set $frame_room
    end
    global.get $frames
    global.get $frame_count
    local.get $size
    i32.mul
    i32.add
    local.tee $entry
    i32.const 0
    local.get $size
    memory.fill
    local.get $entry
    local.get $frame
    i64.store
    global.get $frame_count
    i32.const 1
    i32.add
    global.set $frame_count
    i32.const 1
    global.set $is_new
    local.get $entry
    i32.const 8
    i32.add)

  ;; Whether the last call of `frame` has added it.
  (func (export "frame_is_new") (result i32)
    global.get $is_new)

  ;; The entry of an instruction that has begun in a frame, or zero. Entries are a frame, a place and
  ;; a rule. Those of frames that this one called have ended.
  (func $find_begun (param $frame i64) (param $place i32) (param $rule i32) (result i32)
    (local $entry i32) (local $left i32)
    block $done
      loop $next
        global.get $begun_count
        i32.eqz
        br_if $done
        global.get $begun
        global.get $begun_count
        i32.const 1
        i32.sub
        i32.const 4
        i32.shl
        i32.add
        i64.load
        local.get $frame
        i64.ge_u
        br_if $done
        global.get $begun_count
        i32.const 1
        i32.sub
        global.set $begun_count
        br $next
      end
    end
    global.get $begun_count
    local.set $left
    block $none
      loop $next
        local.get $left
        i32.eqz
        br_if $none
        local.get $left
        i32.const 1
        i32.sub
        local.tee $left
        i32.const 4
        i32.shl
        global.get $begun
        i32.add
        local.tee $entry
        i64.load
        local.get $frame
        i64.ne
        br_if $none
        local.get $entry
        i32.load offset=8
        local.get $place
        i32.ne
        br_if $next
        local.get $entry
        i32.load offset=12
        local.get $rule
        i32.ne
        br_if $next
        local.get $entry
        return
      end
    end
    i32.const 0)

  ;; An instruction begins that a rule observes afterwards.
  (func (export "begin") (param $frame i64) (param $place i32) (param $rule i32)
    (local $entry i32)
    local.get $frame
    local.get $place
    local.get $rule
    call $find_begun
    if
      return
    end
    global.get $begun
    global.get $begun_count
    global.get $begun_room
    i32.const 16
    call $room
    global.set $begun
    global.get $begun_count
    global.get $begun_room
    i32.ge_u
    if
      global.get $begun_count
      i32.const 1
      i32.shl
      i32.const 16
      i32.add
      global.set $begun_room
    end
    global.get $begun
    global.get $begun_count
    i32.const 4
    i32.shl
    i32.add
    local.tee $entry
    local.get $frame
    i64.store
    local.get $entry
    local.get $place
    i32.store offset=8
    local.get $entry
    local.get $rule
    i32.store offset=12
    global.get $begun_count
    i32.const 1
    i32.add
    global.set $begun_count)

  ;; Control has come to where an instruction continues: whether it comes from there.
  (func (export "complete") (param $frame i64) (param $place i32) (param $rule i32) (result i32)
    (local $entry i32)
    local.get $frame
    local.get $place
    local.get $rule
    call $find_begun
    local.tee $entry
    i32.eqz
    if
      i32.const 0
      return
    end
    ;; The last one takes its place.
    global.get $begun_count
    i32.const 1
    i32.sub
    global.set $begun_count
    local.get $entry
    global.get $begun
    global.get $begun_count
    i32.const 4
    i32.shl
    i32.add
    i32.const 16
    memory.copy
    i32.const 1)

  ;; The remainder of a division, exactly, with the sign of the dividend: as `fmod` in C. The divisor
  ;; times a power of two is subtracted where it is not larger, from the largest power down.
  (func (export "remainder") (param $dividend f64) (param $divisor f64) (result f64)
    (local $rest f64) (local $part f64)
    ;; NaN: a zero divisor, an infinite dividend, and NaN.
    local.get $dividend
    local.get $dividend
    f64.sub
    f64.const 0
    f64.ne
    local.get $divisor
    local.get $divisor
    f64.ne
    i32.or
    local.get $divisor
    f64.const 0
    f64.eq
    i32.or
    if
      f64.const nan
      return
    end
    local.get $dividend
    f64.abs
    local.set $rest
    local.get $divisor
    f64.abs
    local.tee $divisor
    local.set $part
    block $found
      loop $larger
        local.get $part
        local.get $rest
        f64.const 0.5
        f64.mul
        f64.le
        i32.eqz
        br_if $found
        local.get $part
        local.get $part
        f64.add
        local.set $part
        br $larger
      end
    end
    block $done
      loop $next
        local.get $part
        local.get $divisor
        f64.lt
        br_if $done
        local.get $rest
        local.get $part
        f64.ge
        if
          local.get $rest
          local.get $part
          f64.sub
          local.set $rest
        end
        local.get $part
        f64.const 0.5
        f64.mul
        local.set $part
        ;; The least number divided by two is zero, or itself.
        local.get $rest
        local.get $divisor
        f64.ge
        br_if $next
      end
    end
    local.get $rest
    local.get $dividend
    f64.copysign)

  ;; A target of a br_table, from the text that has four characters for each: six bits plus 64, the
  ;; lowest bits first. The last one is the default.
  (func (export "target") (param $text i32) (param $length i32) (param $index i32) (result i32)
    (local $digits i32)
    local.get $length
    i32.const 2
    i32.shr_u
    i32.const 1
    i32.sub
    local.tee $length
    local.get $index
    local.get $index
    local.get $length
    i32.gt_u
    select
    i32.const 2
    i32.shl
    local.get $text
    i32.add
    i32.load align=1
    local.tee $digits
    i32.const 0x3f
    i32.and
    local.get $digits
    i32.const 2
    i32.shr_u
    i32.const 0xfc0
    i32.and
    i32.or
    local.get $digits
    i32.const 4
    i32.shr_u
    i32.const 0x3f000
    i32.and
    i32.or
    local.get $digits
    i32.const 6
    i32.shr_u
    i32.const 0xfc0000
    i32.and
    i32.or)

  ;; Whether two sequences of bytes of the same length are equal.
  (func $same_bytes (param $one i32) (param $other i32) (param $length i32) (result i32)
    block $done
      loop $next
        local.get $length
        i32.eqz
        br_if $done
        local.get $one
        i32.load8_u
        local.get $other
        i32.load8_u
        i32.ne
        if
          i32.const 0
          return
        end
        local.get $one
        i32.const 1
        i32.add
        local.set $one
        local.get $other
        i32.const 1
        i32.add
        local.set $other
        local.get $length
        i32.const 1
        i32.sub
        local.set $length
        br $next
      end
    end
    i32.const 1)

  (func (export "starts_with") (param $text i32) (param $length i32) (param $pattern i32) (param $size i32)
      (result i32)
    local.get $size
    local.get $length
    i32.gt_u
    if
      i32.const 0
      return
    end
    local.get $text
    local.get $pattern
    local.get $size
    call $same_bytes)

  (func (export "ends_with") (param $text i32) (param $length i32) (param $pattern i32) (param $size i32)
      (result i32)
    local.get $size
    local.get $length
    i32.gt_u
    if
      i32.const 0
      return
    end
    local.get $text
    local.get $length
    i32.add
    local.get $size
    i32.sub
    local.get $pattern
    local.get $size
    call $same_bytes)

  ;; Whether a pattern matches a complete text: `*` stands for any bytes, `?` for one.
  (func (export "matches") (param $text i32) (param $length i32) (param $pattern i32) (param $size i32)
      (result i32)
    (local $at i32) (local $next i32) (local $star i32) (local $mark i32) (local $byte i32)
    i32.const -1
    local.set $star
    block $done
      loop $step
        local.get $at
        local.get $length
        i32.ge_u
        br_if $done
        i32.const 0
        local.set $byte
        local.get $next
        local.get $size
        i32.lt_u
        if
          local.get $pattern
          local.get $next
          i32.add
          i32.load8_u
          local.tee $byte
          i32.const 42
          i32.eq
          if
            local.get $next
            local.tee $star
            i32.const 1
            i32.add
            local.set $next
            local.get $at
            local.set $mark
            br $step
          end
          local.get $byte
          i32.const 63
          i32.eq
          local.get $byte
          local.get $text
          local.get $at
          i32.add
          i32.load8_u
          i32.eq
          i32.or
          if
            local.get $at
            i32.const 1
            i32.add
            local.set $at
            local.get $next
            i32.const 1
            i32.add
            local.set $next
            br $step
          end
        end
        ;; The last star stands for one byte more.
        local.get $star
        i32.const 0
        i32.lt_s
        if
          i32.const 0
          return
        end
        local.get $star
        i32.const 1
        i32.add
        local.set $next
        local.get $mark
        i32.const 1
        i32.add
        local.tee $mark
        local.set $at
        br $step
      end
    end
    block $rest
      loop $stars
        local.get $next
        local.get $size
        i32.ge_u
        br_if $rest
        local.get $pattern
        local.get $next
        i32.add
        i32.load8_u
        i32.const 42
        i32.ne
        br_if $rest
        local.get $next
        i32.const 1
        i32.add
        local.set $next
        br $stars
      end
    end
    local.get $next
    local.get $size
    i32.eq)

  (func (export "contains") (param $text i32) (param $length i32) (param $pattern i32) (param $size i32)
      (result i32)
    block $done
      loop $next
        local.get $size
        local.get $length
        i32.gt_u
        br_if $done
        local.get $text
        local.get $pattern
        local.get $size
        call $same_bytes
        if
          i32.const 1
          return
        end
        local.get $text
        i32.const 1
        i32.add
        local.set $text
        local.get $length
        i32.const 1
        i32.sub
        local.set $length
        br $next
      end
    end
    i32.const 0)

  ;; The slot of the index in which a string is, or belongs: it contains the address of its entry, or
  ;; zero.
  (func $string_slot (param $text i32) (param $length i32) (result i32)
    (local $hash i32) (local $at i32) (local $entry i32)
    local.get $length
    local.set $hash
    block $done
      loop $next
        local.get $at
        local.get $length
        i32.eq
        br_if $done
        local.get $hash
        local.get $text
        local.get $at
        i32.add
        i32.load8_u
        i32.xor
        i32.const 0x01000193
        i32.mul
        local.set $hash
        local.get $at
        i32.const 1
        i32.add
        local.set $at
        br $next
      end
    end
    loop $next
      local.get $hash
      global.get $string_room
      i32.const 1
      i32.sub
      i32.and
      local.tee $hash
      i32.const 2
      i32.shl
      global.get $strings
      i32.add
      local.tee $at
      i32.load
      local.tee $entry
      i32.eqz
      if
        local.get $at
        return
      end
      local.get $entry
      i32.load offset=8
      local.get $length
      i32.eq
      if
        local.get $entry
        i32.load
        local.get $text
        local.get $length
        call $same_bytes
        if
          local.get $at
          return
        end
      end
      local.get $hash
      i32.const 1
      i32.add
      local.set $hash
      br $next
    end
    unreachable)

  ;; Keeps the index at most half full.
  (func $string_index
    (local $old i32) (local $left i32) (local $entry i32)
    global.get $string_count
    i32.const 1
    i32.shl
    global.get $string_room
    i32.lt_u
    if
      return
    end
    global.get $string_room
    i32.const 0x4000000
    i32.ge_u
    if
      i32.const 0
      call $fail
    end
    global.get $strings
    local.set $old
    global.get $string_room
    local.set $left
    local.get $left
    i32.const 1
    i32.shl
    i32.const 64
    local.get $left
    select
    global.set $string_room
    global.get $string_room
    i32.const 2
    i32.shl
    call $alloc
    global.set $strings
    block $done
      loop $next
        local.get $left
        i32.eqz
        br_if $done
        local.get $old
        i32.load
        local.tee $entry
        if
          local.get $entry
          i32.load
          local.get $entry
          i32.load offset=8
          call $string_slot
          local.get $entry
          i32.store
        end
        local.get $old
        i32.const 4
        i32.add
        local.set $old
        local.get $left
        i32.const 1
        i32.sub
        local.set $left
        br $next
      end
    end)

  ;; A string that stays where it is: the address of its entry.
  (func $keep_string (export "keep_string") (param $text i32) (param $length i32) (result i32)
    (local $slot i32) (local $entry i32)
    call $string_index
    local.get $text
    local.get $length
    call $string_slot
    local.tee $slot
    i32.load
    local.tee $entry
    if
      local.get $entry
      return
    end
    i32.const 16
    call $alloc
    local.tee $entry
    local.get $text
    i32.store
    local.get $entry
    local.get $length
    i32.store offset=8
    local.get $slot
    local.get $entry
    i32.store
    global.get $string_count
    i32.const 1
    i32.add
    global.set $string_count
    local.get $entry)

  ;; A string from the engine's buffer, which it overwrites: the address of its entry.
  (func (export "intern") (param $text i32) (param $length i32) (result i32)
    (local $slot i32) (local $copy i32)
    call $string_index
    local.get $text
    local.get $length
    call $string_slot
    local.tee $slot
    i32.load
    if
      local.get $slot
      i32.load
      return
    end
    local.get $length
    call $alloc
    local.tee $copy
    local.get $text
    local.get $length
    memory.copy
    local.get $copy
    local.get $length
    call $keep_string)

  ;; Room for a string that is read from a library's memory: nothing else is allocated until
  ;; `end_read`.
  (func (export "begin_read") (param $length i32) (result i32)
    call $string_index
    local.get $length
    i32.const 0
    i32.lt_s
    if
      i32.const 0
      call $fail
    end
    local.get $length
    call $alloc)

  ;; A string that was read: the address of its entry. If it is known, the room is given back.
  (func (export "end_read") (param $text i32) (param $length i32) (result i32)
    (local $entry i32)
    local.get $text
    local.get $length
    call $string_slot
    i32.load
    local.tee $entry
    if
      local.get $text
      i32.const 0
      local.get $length
      memory.fill
      local.get $text
      global.set $heap
      local.get $entry
      return
    end
    local.get $text
    local.get $length
    call $keep_string)

  ;; Fails if bytes are outside of a memory that has so many pages of 64 KiB.
  (func (export "outside") (param $address i32) (param $length i32) (param $pages i32)
    local.get $address
    i64.extend_i32_u
    local.get $length
    i64.extend_i32_u
    i64.add
    local.get $pages
    i64.extend_i32_u
    i64.const 16
    i64.shl
    i64.gt_u
    if
      i32.const 5
      call $fail
    end)

  ;; Writes what is pending to standard output; gives up at an error.
  (func $flush (export "flush")
    (local $start i32)
    i32.const 1024
    local.set $start
    block $done
      loop $next
        global.get $pending
        i32.eqz
        br_if $done
        i32.const 0
        local.get $start
        i32.store
        i32.const 0
        global.get $pending
        i32.store offset=4
        i32.const 0
        i32.const 0
        i32.store offset=8
        i32.const 1
        i32.const 0
        i32.const 1
        i32.const 8
        call $fd_write
        br_if $done
        i32.const 0
        i32.load offset=8
        i32.eqz
        br_if $done
        local.get $start
        i32.const 0
        i32.load offset=8
        i32.add
        local.set $start
        global.get $pending
        i32.const 0
        i32.load offset=8
        i32.sub
        global.set $pending
        br $next
      end
    end
    i32.const 0
    global.set $pending)

  (func $byte (export "byte") (param $byte i32)
    global.get $pending
    i32.const 8192
    i32.eq
    if
      call $flush
    end
    global.get $pending
    local.get $byte
    i32.store8 offset=1024
    global.get $pending
    i32.const 1
    i32.add
    global.set $pending)

  (func $text (export "text") (param $address i32) (param $length i32)
    block $done
      loop $next
        local.get $length
        i32.eqz
        br_if $done
        local.get $address
        i32.load8_u
        call $byte
        local.get $address
        i32.const 1
        i32.add
        local.set $address
        local.get $length
        i32.const 1
        i32.sub
        local.set $length
        br $next
      end
    end)

  ;; A string with its quotes doubled.
  (func (export "quoted") (param $address i32) (param $length i32)
    block $done
      loop $next
        local.get $length
        i32.eqz
        br_if $done
        local.get $address
        i32.load8_u
        i32.const 34
        i32.eq
        if
          i32.const 34
          call $byte
        end
        local.get $address
        i32.load8_u
        call $byte
        local.get $address
        i32.const 1
        i32.add
        local.set $address
        local.get $length
        i32.const 1
        i32.sub
        local.set $length
        br $next
      end
    end)

  (func $unsigned (export "unsigned") (param $value i64)
    (local $at i32)
    i32.const 56
    local.set $at
    loop $next
      local.get $at
      i32.const 1
      i32.sub
      local.tee $at
      local.get $value
      i64.const 10
      i64.rem_u
      i32.wrap_i64
      i32.const 48
      i32.add
      i32.store8
      local.get $value
      i64.const 10
      i64.div_u
      local.tee $value
      i64.const 0
      i64.ne
      br_if $next
    end
    local.get $at
    i32.const 56
    local.get $at
    i32.sub
    call $text)

  (func $signed (export "signed") (param $value i64)
    local.get $value
    i64.const 0
    i64.lt_s
    if
      i32.const 45
      call $byte
      i64.const 0
      local.get $value
      i64.sub
      local.set $value
    end
    local.get $value
    call $unsigned)

  (func (export "bool") (param $value i32)
    local.get $value
    if
      i32.const 116 call $byte
      i32.const 114 call $byte
      i32.const 117 call $byte
      i32.const 101 call $byte
    else
      i32.const 102 call $byte
      i32.const 97 call $byte
      i32.const 108 call $byte
      i32.const 115 call $byte
      i32.const 101 call $byte
    end)

  ;; Integers exactly, other numbers with fifteen digits, as 1.5e-3.
  (func (export "float") (param $value f64)
    (local $exponent i32) (local $digits i64) (local $scale i64)
    local.get $value
    local.get $value
    f64.ne
    if
      i32.const 110 call $byte
      i32.const 97 call $byte
      i32.const 110 call $byte
      return
    end
    local.get $value
    f64.const 0
    f64.lt
    if
      i32.const 45
      call $byte
      local.get $value
      f64.neg
      local.set $value
    end
    local.get $value
    f64.const inf
    f64.eq
    if
      i32.const 105 call $byte
      i32.const 110 call $byte
      i32.const 102 call $byte
      return
    end
    local.get $value
    f64.const 9007199254740992
    f64.le
    if
      local.get $value
      local.get $value
      f64.trunc
      f64.eq
      if
        local.get $value
        i64.trunc_f64_u
        call $unsigned
        return
      end
    end
    block $done
      loop $next
        local.get $value
        f64.const 10
        f64.lt
        br_if $done
        local.get $value
        f64.const 10
        f64.div
        local.set $value
        local.get $exponent
        i32.const 1
        i32.add
        local.set $exponent
        br $next
      end
    end
    block $done
      loop $next
        local.get $value
        f64.const 1
        f64.ge
        br_if $done
        local.get $value
        f64.const 10
        f64.mul
        local.set $value
        local.get $exponent
        i32.const 1
        i32.sub
        local.set $exponent
        br $next
      end
    end
    local.get $value
    f64.const 1e14
    f64.mul
    f64.nearest
    i64.trunc_f64_u
    local.tee $digits
    i64.const 1000000000000000
    i64.ge_u
    if
      local.get $digits
      i64.const 10
      i64.div_u
      local.set $digits
      local.get $exponent
      i32.const 1
      i32.add
      local.set $exponent
    end
    local.get $digits
    i64.const 100000000000000
    i64.div_u
    call $unsigned
    local.get $digits
    i64.const 100000000000000
    i64.rem_u
    local.tee $digits
    i64.eqz
    i32.eqz
    if
      i32.const 46
      call $byte
      i64.const 10000000000000
      local.set $scale
      loop $next
        local.get $digits
        local.get $scale
        i64.div_u
        call $unsigned
        local.get $digits
        local.get $scale
        i64.rem_u
        local.set $digits
        local.get $scale
        i64.const 10
        i64.div_u
        local.set $scale
        local.get $digits
        i64.const 0
        i64.ne
        br_if $next
      end
    end
    local.get $exponent
    if
      i32.const 101
      call $byte
      local.get $exponent
      i64.extend_i32_s
      call $signed
    end)
)
