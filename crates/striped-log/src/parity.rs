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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::payload;

    /// The product by long multiplication and division of polynomials.
    fn product_of_polynomials(a: u8, b: u8) -> u8 {
        let mut product = (0..8).filter(|i| b >> i & 1 == 1).fold(0u16, |sum, i| sum ^ u16::from(a) << i);
        for bit in (8..16).rev().filter(|bit| *bit < 15 || a & b & 0x80 != 0) {
            if product >> bit & 1 == 1 {
                product ^= 0x11d << (bit - 8);
            }
        }
        product as u8
    }

    #[test]
    fn products_are_those_of_polynomials_modulo_0x11d() {
        for a in 0..=255 {
            for b in 0..=255 {
                assert_eq!(multiply(a, b), product_of_polynomials(a, b), "{a} * {b}");
            }
        }
    }

    #[test]
    fn every_element_but_zero_has_an_inverse_and_powers_of_g_differ() {
        for x in 1..=255 {
            assert_eq!(multiply(x, inverse(x)), 1, "{x}");
        }
        let powers: std::collections::BTreeSet<u8> = (0..255).map(power).collect();
        assert_eq!(powers.len(), 255);
    }

    #[test]
    fn q_is_the_weighted_sum() {
        let (a, b, c) = ([1, 0x80, 7], [2, 0x80, 9], [3, 0x80]);
        let (mut p, mut q) = ([0xee; 3], [0xee; 3]);
        encode_pq(&[&a, &b, &c], &mut p, &mut q);
        assert_eq!(p, [1 ^ 2 ^ 3, 0x80, 7 ^ 9]);
        assert_eq!(q[0], 1 ^ multiply(2, 2) ^ multiply(3, 4));
        assert_eq!(q[1], 0x80 ^ multiply(0x80, 2) ^ multiply(0x80, 4));
        assert_eq!(q[2], 7 ^ multiply(9, 2));

        let mut alone = [0xee; 3];
        encode_q(&[&a, &b, &c], &mut alone);
        assert_eq!(alone, q);
        encode_p(&[&a, &b, &c], &mut alone);
        assert_eq!(alone, p);
    }

    #[test]
    fn every_single_and_double_loss_of_the_widest_stripe_is_recovered() {
        // The last fragment is short, and lengths are no multiple of any vector's.
        let data: Vec<_> = (0..16).map(|i| payload(if i == 15 { 21 } else { 77 }, i)).collect();
        let slices: Vec<&[u8]> = data.iter().map(|d| &d[..]).collect();
        let (mut p, mut q) = (vec![0; 77], vec![0; 77]);
        encode_pq(&slices, &mut p, &mut q);
        let padded = |i: u8| {
            let mut d = data[usize::from(i)].to_vec();
            d.resize(77, 0);
            d
        };
        for x in 0..16 {
            let mut left = slices.clone();
            left[usize::from(x)] = &[];
            assert_eq!(recover_one_by_p(&left, &p), padded(x));
            assert_eq!(recover_one_by_q(&left, x, &q), padded(x));
            for y in (0..16).filter(|&y| y != x) {
                let mut left = left.clone();
                left[usize::from(y)] = &[];
                assert_eq!(recover_two(&left, x, y, &p, &q), (padded(x), padded(y)));
            }
        }
    }
}
