//! Holds `docs/disk-format.md` and the code together: the document's examples are what the program
//! encodes, and its offsets and lengths are those of the examples.

mod documented;

use documented::example;
use striped_log::fragment::{FragmentHeader, Geometry};
use striped_log::parity;
use striped_log::segment::Segment;
use types::{FragmentId, FsUuid, LogId, SegmentId, StoreId};

const DOCUMENT: &str = include_str!("../../../docs/disk-format.md");

fn rows(heading: &str) -> Vec<Vec<&'static str>> {
    documented::rows(DOCUMENT, heading)
}

fn structure(heading: &str) -> Vec<u8> {
    documented::structure(DOCUMENT, heading)
}

fn segment(log: u32, epoch: u32, seq: u64) -> SegmentId {
    SegmentId { log: LogId::new(log), epoch, seq }
}

#[test]
fn the_header_is_as_documented() {
    let header = FragmentHeader {
        fs: FsUuid([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]),
        id: FragmentId { segment: segment(7, 2, 41), index: 1 },
        attempt: 3,
        geometry: Geometry {
            k: 2,
            m: 1,
            fragment_len: 131_072,
            payload_len: 196_617,
            members: [1, 2, 9].map(StoreId::new).to_vec(),
        },
        delta_offset: 0x2ff00,
        previous: Some(segment(7, 1, 40)),
        order: 0x1_0000_0203,
        chunk_crcs: vec![0x1122_3344, 0x5566_7788],
        len: 65_545,
    };
    let documented = structure("Header");
    assert_eq!(header.encode_with_generation(5)[..], documented);
    assert_eq!(FragmentHeader::decode_with_generation(&documented), Ok((header, 5)));
}

/// Arithmetic on numbers of GF(2^16) as the document writes them, from the document's polynomials.
struct Field {
    /// The polynomial of each number.
    polynomials: Vec<u16>,
    /// The number of each polynomial.
    numbers: Vec<u16>,
}

impl Field {
    fn documented() -> Field {
        let (_, text) = DOCUMENT.split_once("From bit 0 on").expect("the basis is there");
        let (text, _) = text.split_once('.').expect("the sentence ends");
        let basis: Vec<u16> =
            text.split('`').skip(1).step_by(2).map(|hex| u16::from_str_radix(hex, 16).expect("a polynomial")).collect();
        assert_eq!(basis.len(), 16);
        let polynomial =
            |number: u16| (0..16).filter(|bit| number >> bit & 1 == 1).fold(0, |sum, bit| sum ^ basis[bit]);
        let polynomials: Vec<u16> = (0..=u16::MAX).map(polynomial).collect();
        let mut numbers = vec![0; 1 << 16];
        for (number, polynomial) in (0..=u16::MAX).zip(&polynomials) {
            numbers[usize::from(*polynomial)] = number;
        }
        Field { polynomials, numbers }
    }

    /// The product by long multiplication and division of polynomials.
    fn product(&self, a: u16, b: u16) -> u16 {
        let [a, b] = [a, b].map(|number| u32::from(self.polynomials[usize::from(number)]));
        let mut product = (0..16).filter(|bit| b >> bit & 1 == 1).fold(0, |sum, bit| sum ^ a << bit);
        for bit in (16..32).rev() {
            if product >> bit & 1 == 1 {
                product ^= 0x1002d << (bit - 16);
            }
        }
        self.numbers[product as usize]
    }

    /// Both parity slices of `data`, `len` bytes each.
    fn parities(&self, data: &[&[u8]], len: usize) -> [Vec<u8>; 2] {
        let mut parities = [vec![0; len], vec![0; len]];
        for (i, d) in (0u16..).zip(data) {
            let byte = |at: usize| d.get(at).copied().unwrap_or(0);
            for low in (0..len).filter(|at| at % 64 < 32) {
                let element = u16::from_le_bytes([byte(low), byte(low + 32)]);
                for (parity, factor) in parities.iter_mut().zip([(i + 2) ^ 1, i + 2]) {
                    let [l, h] = self.product(element, factor).to_le_bytes();
                    parity[low] ^= l;
                    parity[low + 32] ^= h;
                }
            }
        }
        parities
    }
}

#[test]
fn two_parity_fragments_are_as_documented() {
    let bytes: Vec<Vec<u8>> = rows("Striping").iter().map(|row| example(row[1])).collect();
    let [data @ .., first, second] = &bytes[..] else { panic!("no parity in the table") };
    assert_eq!((data.len(), data[2].len()), (3, 2));
    let slices: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
    let documented = [first.clone(), second.clone()];
    assert_eq!(Field::documented().parities(&slices, 64), documented);

    let mut computed = [vec![0; 64], vec![0; 64]];
    let [first, second] = &mut computed;
    assert_eq!(parity::encode_two(&slices, first, second), Ok(()));
    assert_eq!(computed, documented);
}

#[test]
fn parity_fragments_of_every_width_are_as_documented() {
    let field = Field::documented();
    for k_max in 2..=16u8 {
        // Two chunks each, the last one short within a block.
        let len = u32::from(k_max) * 131_072 - 70_001;
        let payload: Vec<u8> = (0..len).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let (id, payload) = (segment(1, 1, 1), payload.into());
        let log_segment = Segment { id, previous: None, order: 1, payload, delta_offset: len };
        let stripe = |m: u8| {
            let members = (1..=u16::from(k_max + m)).map(StoreId::new).collect();
            log_segment.stripe(FsUuid([0; 16]), 0, Geometry::new(len, k_max, m, members))
        };
        let fragments = stripe(2);
        let data: Vec<&[u8]> = fragments[..usize::from(k_max)].iter().map(|f| &f.payload[..]).collect();
        let parities: Vec<&[u8]> = fragments[usize::from(k_max)..].iter().map(|f| &f.payload[..]).collect();
        // Some blocks of all: at the ends of chunks, and where the short fragment ends.
        for begin in [0, 61_056, 65_472, 65_536, 131_008] {
            let part = |slice: &'_ [u8]| begin.min(slice.len())..(begin + 64).min(slice.len());
            let blocks: Vec<&[u8]> = data.iter().map(|d| &d[part(d)]).collect();
            let computed: Vec<&[u8]> = parities.iter().map(|p| &p[part(p)]).collect();
            assert_eq!(field.parities(&blocks, 64)[..], computed, "{k_max} data fragments, block at {begin}");
        }

        let fragments = stripe(1);
        let (parity, data) = fragments.split_last().expect("fragments");
        for at in (0..131_072).step_by(1_021) {
            let xor = data.iter().fold(0, |sum, d| sum ^ d.payload.get(at).copied().unwrap_or(0));
            assert_eq!(parity.payload[at], xor, "{k_max} data fragments, byte {at}");
        }
    }
}
