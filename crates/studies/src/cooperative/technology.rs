//! How long blocks take from each place (table 3-2): then, in the thesis's projections (table 3-5),
//! and today.

use super::Algorithm;
use crate::ParameterError;
use serde::Serialize;

/// Times, in microseconds.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Technology {
    /// A block from the machine's own memory.
    pub local_us: f64,
    /// A block over the network, without its hops.
    pub transfer_us: f64,
    /// One message from one machine to another.
    pub hop_us: f64,
    /// A block from the server's disk.
    pub disk_us: f64,
}

impl Technology {
    /// 155 Mb/s ATM, and a disk of 1994 (section 3.2).
    pub const ATM: Technology = Technology { local_us: 250.0, transfer_us: 400.0, hop_us: 200.0, disk_us: 14_800.0 };

    /// 25 Gb/s Ethernet and NVMe today. 8 KiB from memory: a system call and a copy at 10 GB/s, 1
    /// µs. Over the network: 65,536 bits at 25 Gb/s, 2.6 µs. A message through the kernel's TCP: 15
    /// µs, half of the round trip of about 30 µs that request-response benchmarks show within a
    /// rack. The disk: 80 µs for a random read, as data sheets of NAND drives for servers say, and
    /// 8 KiB at 7 GB/s.
    pub const NVME_25_GBPS: Technology = Technology { local_us: 1.0, transfer_us: 2.6, hop_us: 15.0, disk_us: 81.2 };

    /// The same with 100 Gb/s, and messages that bypass the kernel (RDMA): 2 µs each, as adapters
    /// of such networks show one way.
    pub const NVME_100_GBPS: Technology = Technology { local_us: 1.0, transfer_us: 0.7, hop_us: 2.0, disk_us: 81.2 };

    /// The thesis's projection for this many years after 1994 (table 3-5): each time shrinks by its
    /// own constant factor each year.
    pub fn projected(years: u32) -> Technology {
        let after = |us: f64, yearly: f64| (0..years).fold(us, |us, _| us / yearly);
        Technology {
            local_us: after(250.0, 1.4),
            transfer_us: after(400.0, 1.45),
            hop_us: after(200.0, 1.2),
            disk_us: after(11_000.0, 1.1) + after(4000.0, 1.2),
        }
    }

    /// Checks the times; an error names the wrong one.
    pub fn check(&self) -> Result<(), ParameterError> {
        let all = [
            ("local-us", self.local_us),
            ("transfer-us", self.transfer_us),
            ("hop-us", self.hop_us),
            ("disk-us", self.disk_us),
        ];
        let fault = all.into_iter().find(|(_, time)| !(0.0..=1e12).contains(time));
        fault.map_or(Ok(()), |(name, _)| Err(ParameterError::Range(name, "0 to 1e12 microseconds")))
    }

    /// How long a read takes from each [`Level`](super::Level), in microseconds (table 3-2).
    pub fn times_us(&self, algorithm: Algorithm) -> [f64; 4] {
        let over = |hops: f64| self.local_us + self.transfer_us + hops * self.hop_us;
        let (remote, server) = match algorithm {
            // The client knows the holder without asking.
            Algorithm::Direct => (2.0, 2.0),
            // The machine that was asked first asks the server.
            Algorithm::Hash => (2.0, 3.0),
            _ => (3.0, 2.0),
        };
        [self.local_us, over(remote), over(server), over(server) + self.disk_us]
    }
}

/// Mean time of reads, in microseconds. `None` without reads.
pub fn mean_us(reads: &[u64; 4], times_us: &[f64; 4]) -> Option<f64> {
    let count: u64 = reads.iter().sum();
    let time: f64 = reads.iter().zip(times_us).map(|(count, time)| *count as f64 * time).sum();
    (count > 0).then(|| time / count as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_table_3_2() {
        for algorithm in Algorithm::ALL {
            let expected = match algorithm {
                Algorithm::Direct => [250.0, 1050.0, 1050.0, 15_850.0],
                Algorithm::Hash => [250.0, 1050.0, 1250.0, 16_050.0],
                _ => [250.0, 1250.0, 1050.0, 15_850.0],
            };
            assert_eq!(Technology::ATM.times_us(algorithm), expected, "{algorithm:?}");
        }
    }

    #[test]
    fn projections_are_those_of_table_3_5() {
        let rounded = |years| {
            let of = Technology::projected(years);
            [of.local_us, of.hop_us, of.transfer_us, of.disk_us].map(f64::round)
        };
        assert_eq!(rounded(0), [250.0, 200.0, 400.0, 15_000.0]);
        assert_eq!(rounded(1), [179.0, 167.0, 276.0, 13_333.0]);
        assert_eq!(rounded(3), [91.0, 116.0, 131.0, 10_579.0]);
        assert_eq!(rounded(5), [46.0, 80.0, 62.0, 8_438.0]);
    }

    #[test]
    fn times_that_make_no_sense_are_named() {
        let wrong = |of: Technology| of.check().expect_err("wrong").to_string();
        assert!(wrong(Technology { hop_us: -1.0, ..Technology::ATM }).starts_with("hop-us"));
        assert!(wrong(Technology { disk_us: f64::NAN, ..Technology::ATM }).starts_with("disk-us"));
        assert_eq!(Technology::ATM.check(), Ok(()));
    }
}
