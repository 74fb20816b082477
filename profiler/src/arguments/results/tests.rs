//! Results in code that is assembled here. The computed values are compared with those that the
//! processor computes. What probes fetch in compiled programs is tested in
//! `tests/tests/script/results.rs`.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use object::{Object as _, ObjectSymbol};

use super::super::object::Object;
use super::super::{Register, ScalarType, Source, Unavailable};

const RBX: Register = Register(3);
const RBP: Register = Register::RBP;
const RSP: Register = Register::RSP;
const R12: Register = Register(12);

const INT: ScalarType = ScalarType::Integer { bytes: 4, is_signed: true };
const LONG: ScalarType = ScalarType::Integer { bytes: 8, is_signed: true };
const CHAR: ScalarType = ScalarType::Integer { bytes: 1, is_signed: true };

/// An object, and the address of a label.
struct Assembled {
    object: Object,
    labels: Vec<(String, u64)>,
}

impl Assembled {
    /// `source` is assembly; the compiler adds debugging information, without which an object is
    /// not read.
    fn new(folder: &Path, source: &str, flags: &[&str]) -> Self {
        let (text, file) = (folder.join("code.s"), folder.join("code"));
        fs::write(
            &text,
            format!(".intel_syntax noprefix\n{source}\n.section .note.GNU-stack,\"\",@progbits\n"),
        )
        .unwrap();
        let mut compiler = Command::new("cc");
        compiler.args(["-g", "-o"]).arg(&file).arg(&text).args(flags);
        assert!(compiler.status().unwrap().success(), "{source}");
        let data = fs::read(&file).unwrap();
        let elf = object::File::parse(&*data).unwrap();
        let label = |symbol: object::Symbol<'_, '_>| (symbol.name().unwrap().to_owned(), symbol.address());
        let labels = elf.symbols().map(label).collect();
        Self { object: Object::read(&file).unwrap(), labels }
    }

    fn label(&self, wanted: &str) -> u64 {
        self.labels.iter().find(|(name, _)| name == wanted).expect("there is this label").1
    }
}

/// Checks where a result is, from the code after the call to a probe.
#[track_caller]
fn check(text: &str, ty: ScalarType, expected: Option<Source>) {
    let folder = tempfile::tempdir().unwrap();
    let code = format!("f: call f\nreturns:\n{}", text.replace("; ", "\n"));
    let assembled = Assembled::new(folder.path(), &code, &["-shared"]);
    let found = super::source(&assembled.object, assembled.label("returns"), ty);
    assert_eq!(found, expected.ok_or(Unavailable::NotInCode), "{text}");
}

#[test]
fn results_are_in_registers_slots_and_constants() {
    let in_rbx = Some(Source::Register(RBX, 0));
    check("mov rax, rbx; pop rbx; ret", LONG, in_rbx.clone());
    check("mov eax, ebx; pop rbx; ret", INT, in_rbx.clone());
    check("movsx eax, bl; ret", CHAR, in_rbx.clone());
    check("movzx eax, bl; ret", ScalarType::Bool, in_rbx.clone());
    check("mov rax, rbx; cdqe; ret", INT, in_rbx.clone());
    check("movq xmm0, rbx; ret", ScalarType::Double, in_rbx.clone());
    check("movd xmm0, ebx; ret", ScalarType::Float, in_rbx.clone());
    check("movd xmm0, ebx; ret", ScalarType::Double, None);
    check("movd xmm0, ebx; mov rax, r12; ret", ScalarType::Float, in_rbx.clone());
    check("lea rax, [rbx + 24]; ret", LONG, Some(Source::Register(RBX, 24)));
    check("lea rax, [rsp + 24]; add rsp, 8; ret", LONG, Some(Source::Register(RSP, 24)));
    check("mov eax, [rbp - 20]; leave; ret", INT, Some(Source::Memory(RBP, -20)));
    check("leave; mov rax, r12; ret", LONG, Some(Source::Register(R12, 0)));
    check("add rsp, 16; pop rbp; mov rax, [rsp - 8]; ret", LONG, Some(Source::Memory(RSP, 16)));
    check("movsd xmm0, [rsp + 8]; add rsp, 24; ret", ScalarType::Double, Some(Source::Memory(RSP, 8)));
    check("movss xmm0, [rsp + 12]; ret", ScalarType::Float, Some(Source::Memory(RSP, 12)));
    check("mov eax, -5; ret", INT, Some(Source::Constant(0xffff_fffb)));
    check("xor eax, eax; ret", INT, Some(Source::Constant(0)));
    check("pxor xmm0, xmm0; ret", ScalarType::Double, Some(Source::Constant(0)));
    let half = Some(Source::Constant(0.5_f64.to_bits()));
    check("movsd xmm0, [rip + half]; ret; .section .rodata; half: .double 0.5", ScalarType::Double, half);
    check("movsd xmm0, [rip + half]; ret; .data; half: .double 0.5", ScalarType::Double, None);
    let text = Some(Source::Register(Register::RETURN_ADDRESS, 8));
    check("lea rax, [rip + text]; ret; text: ret", LONG, text);
    // A jump to a common epilogue.
    check("mov rax, rbx; jmp 2f; 1: pop rcx; ret; 2: jmp 1b", LONG, in_rbx);
}

#[test]
fn results_that_the_code_does_not_show_are_not_known() {
    // What the call has changed, and what a register has in fewer bits than the type.
    check("ret", LONG, None);
    check("mov rax, rcx; ret", LONG, None);
    check("mov al, bl; ret", INT, None);
    check("mov eax, [rcx]; ret", INT, None);
    check("mov eax, [rsp + rbx * 4]; ret", INT, None);
    check("mov rax, rbx; cpuid; ret", LONG, None);
    // A stack word that is freed if there is no result.
    check("pop rax; ret", LONG, None);
    // Another probe may follow, or the slot may be another value.
    check("call f; mov rax, rbx; ret", LONG, None);
    check("mov [rsp], rcx; mov rax, [rsp]; ret", LONG, None);
    check("push rcx; mov rax, [rsp]; ret", LONG, None);
    check("mov rax, rbx; test rbx, rbx; jz 1f; ret; 1: mov eax, 1; ret", LONG, None);
    check("mov rax, rbx; jmp rcx", LONG, None);
    check("mov rax, rbx; 1: jmp 1b", LONG, None);
    check("mov rax, rbx; ud2", LONG, None);
}

/// If the check fails, the function does not return.
#[test]
fn the_check_of_the_stack_protector_is_passed() {
    let in_rbx = Some(Source::Register(RBX, 0));
    let fail = "; 1: call f";
    for check_of in [
        "mov rdx, [rsp + 8]; sub rdx, fs:0x28; jne 1f",
        "mov rdx, [rsp + 8]; xor rdx, fs:0x28; jne 1f",
        "mov rcx, fs:0x28; mov rdx, [rbp - 8]; cmp rcx, rdx; jne 1f",
        "mov rcx, fs:0x28; cmp rcx, [rsp + 8]; jne 1f",
    ] {
        check(&format!("mov rax, rbx; {check_of}; ret{fail}"), LONG, in_rbx.clone());
    }
    check("mov rax, rbx; mov rcx, [rsp]; xor rcx, fs:0x28; je 1f; call f; 1: leave; ret", LONG, in_rbx);
    check("mov rax, rbx; mov rcx, fs:0x28; cmp rcx, [rsp]; jb 1f; ret; 1: ret", LONG, None);
    check("mov rax, rbx; mov rcx, fs:0x30; cmp rcx, [rsp]; jne 1f; ret; 1: ret", LONG, None);
    check("mov rax, fs:0x28; cmp rax, [rsp + 8]; jne 1f; ret; 1: call f", LONG, None);
}

/// Values of RBX, RBP, R12, R13, R14, R15, and of slots from RSP on.
const VALUES: [[u64; 6]; 4] = [
    [5, 3, 7, 1, 0, u64::MAX],
    [u64::MAX, 1 << 63, 0x8000_0000, 0x7fff_ffff, 0x1234_5678_9abc_def0, 77],
    [0x4009_21fb_5444_2d18, 0xbff0_0000_0000_0000, 0x4049_0fdb, 0xc000_0000, 0x3ff8_0000_0000_0000, 2],
    [0x80, 0xff7f, 100, 0xffff_ffff_ffff_ff9c, 0x43e0_0000_0000_0000, 0x7ff0_0000_0000_0000],
];

/// Code after a probe: its result in RAX, or in XMM0.
const COMPUTED: [(&str, ScalarType); 76] = {
    const D: ScalarType = ScalarType::Double;
    const F: ScalarType = ScalarType::Float;
    [
        ("lea rax, [rbx + r12 * 4 - 9]", LONG),
        ("lea eax, [rbx + rbp]", INT),
        ("lea eax, [rbx + rbp]", LONG),
        ("lea rax, [r12 * 8]", LONG),
        ("mov rax, rbx; add rax, rbp", LONG),
        ("mov eax, ebx; sub eax, [rsp + 4]", LONG),
        ("mov rax, rbx; imul rax, rbp", LONG),
        ("imul eax, ebx, -12", LONG),
        ("imul rax, [rsp + 8], 1000", LONG),
        ("mov rax, rbx; and rax, -8; or rax, 3", LONG),
        ("mov eax, ebx; xor eax, r13d; not eax", LONG),
        ("mov rax, rbx; neg rax", LONG),
        ("mov eax, ebx; neg eax", LONG),
        ("mov rax, rbx; inc rax", LONG),
        ("mov eax, ebp; dec eax", LONG),
        ("mov rax, rbx; shl rax, 3", LONG),
        ("mov eax, ebx; shr eax, 5", LONG),
        ("mov eax, ebx; sar eax, 5", LONG),
        ("mov rax, rbp; sar rax, 63", LONG),
        ("mov rax, rbx; shr rax, 1", LONG),
        ("mov ecx, r12d; mov rax, rbp; shr rax, cl", LONG),
        ("mov ecx, r13d; mov eax, ebx; shl eax, cl", LONG),
        ("movsx eax, bx", LONG),
        ("movsx rax, bl", LONG),
        ("movsxd rax, r12d", LONG),
        ("movzx eax, word ptr [rsp + 8]", LONG),
        ("movsx rax, byte ptr [rsp + 9]", LONG),
        ("mov eax, ebx; cdqe", LONG),
        ("xor eax, eax; cmp rbx, rbp; sete al", LONG),
        ("xor eax, eax; cmp ebx, r12d; setne al", LONG),
        ("xor eax, eax; cmp rbx, rbp; setl al", LONG),
        ("xor eax, eax; cmp ebx, r12d; setge al", LONG),
        ("xor eax, eax; cmp rbx, [rsp + 16]; setg al", LONG),
        ("cmp bl, r12b; setle al; movzx eax, al", LONG),
        ("xor eax, eax; cmp rbx, rbp; setb al", LONG),
        ("xor eax, eax; cmp ebx, 0x7fffffff; setae al", LONG),
        ("xor eax, eax; cmp rbx, -2; seta al", LONG),
        ("xor eax, eax; cmp bx, r13w; setbe al", LONG),
        ("xor eax, eax; cmp ebx, r12d; sets al", LONG),
        ("xor eax, eax; test rbx, rbx; setns al", LONG),
        ("xor eax, eax; test ebx, ebp; sete al", LONG),
        ("xor eax, eax; test bl, 4; setne al", LONG),
        ("test rbx, rbx; setg al", CHAR),
        ("xor eax, eax; mov rcx, rbx; sub rcx, rbp; setl al", LONG),
        ("xor eax, eax; mov ecx, ebx; and ecx, r12d; setg al", LONG),
        ("mov rax, rbx; cmp rbx, rbp; cmovl rax, rbp", LONG),
        ("mov eax, ebx; test ebx, ebx; cmovs eax, r12d", LONG),
        ("movq xmm0, rbx; movq xmm1, rbp; addsd xmm0, xmm1; mulsd xmm0, [rsp + 24]", D),
        ("movq xmm0, rbx; subsd xmm0, [rsp + 8]; divsd xmm0, [rsp]", D),
        ("movss xmm0, [rsp]; addss xmm0, [rsp + 4]; mulss xmm0, [rsp + 16]; subss xmm0, [rsp]", F),
        ("movd xmm0, ebx; divss xmm0, [rsp + 16]; sqrtss xmm0, xmm0", F),
        ("movq xmm0, rbx; sqrtsd xmm0, xmm0", D),
        ("pxor xmm0, xmm0; cvtsi2sd xmm0, rbx", D),
        ("pxor xmm0, xmm0; cvtsi2sd xmm0, r12d", D),
        ("pxor xmm0, xmm0; cvtsi2ss xmm0, dword ptr [rsp + 20]", F),
        ("movd xmm0, r12d; unpcklps xmm0, xmm0; cvtps2pd xmm0, xmm0", D),
        ("pxor xmm0, xmm0; cvtsd2ss xmm0, [rsp]", F),
        ("movq xmm1, rbx; cvttsd2si rax, xmm1", LONG),
        ("movq xmm1, rbx; cvttsd2si eax, xmm1", LONG),
        ("cvttss2si rax, dword ptr [rsp + 16]", LONG),
        ("mov rax, rbx; mul rbp; mov rax, rdx", LONG),
        ("mov rax, rbx; imul qword ptr [rsp + 8]; add rax, rdx", LONG),
        ("mov eax, ebx; mul r12d; shr edx, 3; mov eax, edx", LONG),
        ("mov eax, ebx; imul r13d; sub eax, edx", LONG),
        ("mov rax, rbx; neg rax; cmovs rax, rbx", LONG),
        ("mov rax, rbx; cqo; xor rax, rdx; sub rax, rdx", LONG),
        ("mov eax, ebx; cdq; xor eax, edx", LONG),
        ("xor eax, eax; movq xmm1, rbx; comisd xmm1, [rsp + 8]; seta al", LONG),
        ("xor eax, eax; movq xmm1, rbx; comisd xmm1, [rsp + 8]; setbe al", LONG),
        ("xor eax, eax; movq xmm1, rbx; ucomisd xmm1, [rsp + 32]; setae al", LONG),
        ("xor eax, eax; movss xmm1, [rsp + 4]; comiss xmm1, [rsp + 16]; setb al", LONG),
        ("movq xmm1, rbx; xor eax, eax; ucomisd xmm1, [rsp]; setnp al; mov ecx, 0; cmovne eax, ecx", LONG),
        ("xor eax, eax; movss xmm1, [rsp + 16]; ucomiss xmm1, [rsp]; setp al", LONG),
        ("xor eax, eax; movss xmm1, [rsp + 16]; ucomiss xmm1, [rsp + 4]; sete al", LONG),
        ("movq xmm0, rbx; andpd xmm0, [rip + mask]", D),
        ("movaps xmm1, [rip + mask]; movq xmm0, rbp; xorps xmm0, xmm1", D),
    ]
};

/// The same for AVX.
const WITH_AVX: [(&str, ScalarType); 9] = {
    const D: ScalarType = ScalarType::Double;
    const F: ScalarType = ScalarType::Float;
    [
        ("vmovq xmm1, rbx; vmulsd xmm0, xmm1, [rsp + 24]; vaddsd xmm0, xmm0, xmm1", D),
        ("vmovss xmm2, [rsp + 4]; vsubss xmm1, xmm2, [rsp + 16]; vdivss xmm0, xmm1, xmm2", F),
        ("vxorps xmm1, xmm1, xmm1; vcvtsi2sd xmm0, xmm1, rbx", D),
        ("vmovss xmm1, [rsp + 16]; vcvtss2sd xmm0, xmm0, xmm1", D),
        ("vmovsd xmm1, [rsp]; vcvtsd2ss xmm0, xmm1, xmm1; vsqrtss xmm0, xmm0, xmm0", F),
        ("vmovq xmm0, rbp; vandpd xmm0, xmm0, [rip + mask]", D),
        ("vmovq xmm1, rbx; vcvttsd2si rax, xmm1", LONG),
        ("xor eax, eax; vmovq xmm1, rbx; vcomisd xmm1, [rsp + 8]; seta al", LONG),
        ("vmovsd xmm1, [rsp + 8]; vmulsd xmm1, xmm1, xmm1; vmovq rax, xmm1", LONG),
    ]
};

/// The code that this processor can execute.
fn computed() -> impl Iterator<Item = (usize, (&'static str, ScalarType))> {
    let with_avx = if is_x86_feature_detected!("avx") { &WITH_AVX[..] } else { &[] };
    COMPUTED.iter().chain(with_avx).copied().enumerate()
}

/// Each piece of code, with each set of values, as a function that returns RAX and XMM0.
fn program() -> String {
    let mut text = ".section .rodata\n.balign 16\nmask: .quad 0x7fffffffffffffff, 0\n.text\n".to_owned();
    for (number, (code, _)) in computed() {
        for (set, values) in VALUES.iter().enumerate() {
            let _ = writeln!(
                text,
                ".globl f_{number}_{set}\nf_{number}_{set}:\npush rbx\npush rbp\npush r12\npush r13\npush r14\npush r15\nsub rsp, 56"
            );
            for (register, value) in ["rbx", "rbp", "r12", "r13", "r14", "r15"].iter().zip(values) {
                let _ = writeln!(text, "movabs {register}, {value}");
            }
            for (slot, value) in values.iter().enumerate() {
                let _ = writeln!(text, "movabs rax, {value}\nmov [rsp + {}], rax", 8 * slot);
            }
            let _ = writeln!(
                text,
                "returns_{number}_{set}:\n{}\nadd rsp, 56\npop r15\npop r14\npop r13\npop r12\npop rbp\npop rbx\nret",
                code.replace("; ", "\n")
            );
        }
    }
    // Prints the registers after each call.
    text += ".globl main\nmain:\npush rbx\n";
    for (number, _) in computed() {
        for set in 0..VALUES.len() {
            let _ = writeln!(
                text,
                "xorps xmm0, xmm0\ncall f_{number}_{set}\nmov rsi, rax\nmovq rdx, xmm0\nlea rdi, [rip + format]\nxor eax, eax\ncall printf@PLT"
            );
        }
    }
    text + "xor eax, eax\npop rbx\nret\n.section .rodata\nformat: .string \"%lu %lu\\n\"\n"
}

#[test]
fn computations_have_the_results_of_the_processor() {
    let folder = tempfile::tempdir().unwrap();
    let assembled = Assembled::new(folder.path(), &program(), &[]);
    let output = Command::new(folder.path().join("code")).output().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    let mut lines = text.lines();
    for (number, (code, ty)) in computed() {
        for (set, values) in VALUES.iter().enumerate() {
            let (rax, xmm0) = lines.next().unwrap().split_once(' ').unwrap();
            let is_float = matches!(ty, ScalarType::Float | ScalarType::Double);
            let expected = ty.extend(if is_float { xmm0 } else { rax }.parse().unwrap());
            let returns = assembled.label(&format!("returns_{number}_{set}"));
            let source = super::source(&assembled.object, returns, ty);
            let registers = |register: Register| match register.general()? {
                3 => Some(values[0]),
                6 => Some(values[1]),
                number => values.get(usize::from(number).checked_sub(10)?).copied(),
            };
            let read = |base: Register, offset: i32, bytes: u8| {
                assert_eq!(base, RSP, "{code}");
                let all: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
                let mut found = [0; 8];
                let start = usize::try_from(offset).ok()?;
                found[..bytes.into()].copy_from_slice(all.get(start..start + usize::from(bytes))?);
                Some(u64::from_le_bytes(found))
            };
            let found = match &source {
                Ok(Source::Computed(computation)) => computation.evaluate(registers, read),
                Ok(Source::Register(register, added)) => {
                    registers(*register).map(|value| value.wrapping_add_signed(*added))
                }
                _ => None,
            };
            assert_eq!(found.map(|bits| ty.extend(bits)), Some(expected), "{code}, {values:x?}: {source:?}");
        }
    }
    assert_eq!(lines.next(), None);
}
