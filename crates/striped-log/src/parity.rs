//! The redundancy codes, as arithmetic on slices.
//!
//! The first parity fragment `P` is the XOR of the data fragments. The second, `Q`, is the sum of `g^i * d_i` over GF(2^8) with
//! the polynomial 0x11d and `g = 2`: the Reed-Solomon code of RAID 6 (H. P. Anvin, "The mathematics of RAID-6"). Any `m` of the
//! `k + m` fragments can be lost, for `k` up to 255. With `k = 1` both are copies of the data.
//!
//! The loops are plain safe Rust in shapes that the compiler vectorises for any x86-64 (docs/decisions/2026-11-21-parity.md).
//! Data slices may be shorter than the parity slices; what is missing counts as zeros.

/// Reduces a doubled value: x^8 = x^4 + x^3 + x^2 + 1.
const POLYNOMIAL: u8 = 0x1d;

/// `a ^= b`, over the length of `b`, which is not longer than `a`.
pub fn xor_into(a: &mut [u8], b: &[u8]) {
    for (a, b) in a.iter_mut().zip(b) {
        *a ^= b;
    }
}

/// Twice `x` in the field. The shift spreads the top bit over a mask, which keeps the loops around it free of branches.
fn double(x: u8) -> u8 {
    (x << 1) ^ (((x as i8) >> 7) as u8 & POLYNOMIAL)
}

/// `q = 2 * q + d`, where `d` is zero beyond its end.
fn double_and_add(q: &mut [u8], d: &[u8]) {
    let (with_data, beyond) = q.split_at_mut(d.len().min(q.len()));
    for (q, d) in with_data.iter_mut().zip(d) {
        *q = double(*q) ^ d;
    }
    for q in beyond {
        *q = double(*q);
    }
}

/// `p += d` and `q = 2 * q + d` in one pass.
fn add_both(p: &mut [u8], q: &mut [u8], d: &[u8]) {
    for ((p, q), d) in p.iter_mut().zip(q.iter_mut()).zip(d) {
        *p ^= d;
        *q = double(*q) ^ d;
    }
    for q in &mut q[d.len()..] {
        *q = double(*q);
    }
}

/// The product of two field elements.
fn multiply(a: u8, b: u8) -> u8 {
    let (mut product, mut power) = (0, a);
    for bit in 0..8 {
        // All ones where the bit is set.
        product ^= power & 0u8.wrapping_sub(b >> bit & 1);
        power = double(power);
    }
    product
}

/// `x *= c`, element by element.
fn scale(x: &mut [u8], c: u8) {
    for x in x {
        *x = multiply(*x, c);
    }
}

/// `g^n`.
fn power(n: u8) -> u8 {
    (0..n).fold(1, |x, _| double(x))
}

/// `1 / x` for `x != 0`: `x^254`.
fn inverse(x: u8) -> u8 {
    (0..253).fold(x, |product, _| multiply(product, x))
}

/// Computes `P` of `data` over whatever `p` held. No slice of `data` is longer than `p`.
pub fn encode_p(data: &[&[u8]], p: &mut [u8]) {
    p.fill(0);
    for d in data {
        xor_into(p, d);
    }
}

/// Computes `Q` of `data` over whatever `q` held. No slice of `data` is longer than `q`.
pub fn encode_q(data: &[&[u8]], q: &mut [u8]) {
    q.fill(0);
    // Horner's rule, from the highest power down.
    for d in data.iter().rev() {
        double_and_add(q, d);
    }
}

/// Computes `P` and `Q` of `data` over whatever they held. `p` and `q` have one length, and no slice of `data` is longer.
pub fn encode_pq(data: &[&[u8]], p: &mut [u8], q: &mut [u8]) {
    p.fill(0);
    q.fill(0);
    for d in data.iter().rev() {
        add_both(p, q, d);
    }
}

/// Finds one lost data fragment, number `x`, from `Q`. `data` holds the others, and an empty slice for `x`.
pub fn recover_one_by_q(data: &[&[u8]], x: u8, q: &[u8]) -> Vec<u8> {
    let mut lost = vec![0; q.len()];
    encode_q(data, &mut lost);
    xor_into(&mut lost, q);
    scale(&mut lost, inverse(power(x)));
    lost
}

/// Finds one lost data fragment from `P`. `data` holds the others, and an empty slice for the lost one.
pub fn recover_one_by_p(data: &[&[u8]], p: &[u8]) -> Vec<u8> {
    let mut lost = p.to_vec();
    for d in data {
        xor_into(&mut lost, d);
    }
    lost
}

/// Finds two lost data fragments, numbers `x != y`. `data` holds the others, and empty slices for these.
pub fn recover_two(data: &[&[u8]], x: u8, y: u8, p: &[u8], q: &[u8]) -> (Vec<u8>, Vec<u8>) {
    // What the two contribute: `both = dx + dy` and `weighted = g^x dx + g^y dy`, so `weighted + g^y both = (g^x + g^y) dx`.
    let mut both = recover_one_by_p(data, p);
    let mut weighted = vec![0; q.len()];
    encode_q(data, &mut weighted);
    xor_into(&mut weighted, q);

    let (gx, gy) = (power(x), power(y));
    let mut dx = both.clone();
    scale(&mut dx, gy);
    xor_into(&mut dx, &weighted);
    scale(&mut dx, inverse(gx ^ gy));
    xor_into(&mut both, &dx);
    (dx, both)
}
