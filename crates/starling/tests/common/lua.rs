//! Real C sources to build: the Lua interpreter.

use crate::common::programs::bring;
use crate::common::run;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where cargo keeps the sources of the Lua interpreter.
fn lua_sources() -> PathBuf {
    // Without the filter it would ask for crates of other systems, which are not there.
    let platform = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let output = run(Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--offline", "--filter-platform", &platform])
        .current_dir(env!("CARGO_MANIFEST_DIR")));
    let metadata: serde_json::Value = serde_json::from_str(&output).expect("cargo metadata");
    let packages = metadata["packages"].as_array().expect("packages");
    let lua = packages.iter().find(|p| p["name"] == "lua-src").expect("lua-src is a dev-dependency");
    let manifest = Path::new(lua["manifest_path"].as_str().expect("manifest path"));
    let found = fs::read_dir(manifest.parent().expect("folder")).expect("sources").flatten().map(|e| e.path());
    found.filter(|p| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with("lua-5.4"))).max().expect("Lua 5.4")
}

/// The crate has the library's sources only.
const MAIN: &str = r#"
#include "lauxlib.h"
#include "lualib.h"
int main(int argc, char **argv) {
    lua_State *state = luaL_newstate();
    luaL_openlibs(state);
    return argc != 2 || luaL_dostring(state, argv[1]);
}
"#;

const MAKEFILE: &str = "\
OBJECTS := $(patsubst %.c,%.o,$(filter-out luac.c onelua.c ltests.c,$(wildcard *.c)))
lua: $(OBJECTS)
\t$(CC) -o $@ $^ -lm
%.o: %.c $(wildcard *.h)
\t$(CC) -O1 -c -o $@ $<
";

/// What it takes to build them.
pub fn bring_tools() {
    bring("make", "make");
    bring("cc", "gcc libc6-dev");
}

/// Puts the sources, with a program and a makefile, in a folder that is not there yet.
pub fn put_sources(folder: &Path) {
    run(Command::new("cp").arg("-r").arg(lua_sources()).arg(folder));
    fs::write(folder.join("main.c"), MAIN).expect("main.c");
    fs::write(folder.join("Makefile"), MAKEFILE).expect("Makefile");
}
