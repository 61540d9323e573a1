//! `src/etcd/generated.rs` is what `etcd.proto` says.

use std::fs;
use std::path::Path;

use prost_build::{Config, Module, Service, ServiceGenerator};

/// The variable that makes the test write the file in place of comparing it.
const UPDATE: &str = "SIGNALBOX_UPDATE_GENERATED";

/// Writes the path of each call; the client makes calls by their paths.
struct Paths;

impl ServiceGenerator for Paths {
    fn generate(&mut self, service: Service, code: &mut String) {
        for method in &service.methods {
            let name = format!("{}_{}", service.name, method.name).to_uppercase();
            let path = format!("/{}.{}/{}", service.package, service.proto_name, method.proto_name);
            code.push_str(&format!("pub const {name}: &str = \"{path}\";\n"));
        }
    }
}

fn generated(proto: &Path) -> String {
    let descriptors = protox::compile([proto], [proto.parent().unwrap()]).unwrap();
    let mut config = Config::new();
    config.disable_comments(["."]).service_generator(Box::new(Paths));
    let module = Module::from_protobuf_package_name("etcdserverpb");
    let requests = descriptors.file.into_iter().map(|file| (module.clone(), file)).collect();
    let code = config.generate(requests).unwrap().remove(&module).unwrap();
    format!("// The messages of etcd.proto: {UPDATE}=1 cargo test -p signalbox-cluster generated\n{code}")
}

#[test]
fn the_generated_messages_are_those_of_the_proto_file() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/etcd");
    let expected = generated(&folder.join("etcd.proto"));
    let file = folder.join("generated.rs");
    if std::env::var_os(UPDATE).is_some() {
        fs::write(&file, &expected).unwrap();
    }
    let found = fs::read_to_string(&file).unwrap_or_default();
    assert!(
        found == expected,
        "crates/cluster/src/etcd/generated.rs is not what etcd.proto says; write it again:\n\
         {UPDATE}=1 cargo test -p signalbox-cluster generated"
    );
}
