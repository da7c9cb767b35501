//! The maps that voters and stores keep.

use cluster::FsConfig;

/// Decodes maps. Maps of older versions are written in the present version.
pub fn maps(bytes: &[u8]) -> bool {
    let Ok(config) = FsConfig::decode(bytes) else { return false };
    assert_eq!(config.may_become(&config), Ok(()));
    assert_eq!(FsConfig::decode(&config.encode()), Ok(config));
    true
}
