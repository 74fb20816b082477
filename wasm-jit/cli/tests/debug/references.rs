#![no_std]
#![no_main]

pub struct Point { x: i32, y: i64 }

static mut TOTAL: i32 = 5;

#[inline(never)]
fn add(p: &Point, q: Point, n: &mut i32, name: &str, numbers: &[u16]) -> i64 {
    *n += numbers[1] as i32;
    // SAFETY: there is one thread.
    unsafe { TOTAL += *n; }
    p.x as i64 + q.y + name.len() as i64 + *n as i64
}

#[no_mangle]
pub extern "C" fn go(mut n: i32) -> i64 {
    add(&Point { x: 1, y: 2 }, Point { x: 3, y: 4 }, &mut n, "abc", &[10, 20, 30])
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! { loop {} }
