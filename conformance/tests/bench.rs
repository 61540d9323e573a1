//! The benchmark of clients works, with few of everything: `conformance bench --quick`.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

#[test]
fn the_benchmark_measures_a_driver() {
    let program = Path::new(env!("CARGO_BIN_EXE_conformance"));
    let driver = format!("rust={}", program.with_file_name("examples").join("rust").display());
    let output = Command::new(program).args(["bench", "--quick", "--json", &driver]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    let figures: Value = serde_json::from_str(&said).unwrap();
    let rust = &figures["clients"][0];
    for figure in ["pairs_per_second", "pair_median_us", "pair_p99_us", "revocation_us", "death_us"] {
        assert!(rust[figure].as_u64().is_some_and(|value| value > 0), "{figure}: {figures}");
    }
    // The driver gives a lease up 40 ms before its end, and not much earlier.
    assert!(rust["early_ms"].as_i64().is_some_and(|early| early < 200), "{figures}");
}
