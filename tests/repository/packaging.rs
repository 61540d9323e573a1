//! The sources of the Debian package and of the image: they exist, and agree with each other and with the program. The image
//! itself needs a registry and a daemon of Docker, so no test builds it.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::Command;

use signalbox::config::{Config, Language};

use crate::documents::{read, root};
use crate::support::daemon::{Daemon, SIGNALBOX, outcome, stderr};
use crate::support::ports::free_ports;

/// An instruction of the Dockerfile and its arguments as one line.
struct Instruction {
    name: String,
    arguments: String,
}

impl Instruction {
    /// The arguments that are separated by spaces.
    fn words(&self) -> Vec<&str> {
        self.arguments.split_whitespace().collect()
    }

    /// The program and the arguments of the form `["program", "argument"]`, which needs no shell.
    fn exec_form(&self) -> Vec<String> {
        let (_, list) = self.arguments.split_at(self.arguments.find('[').expect(&self.arguments));
        serde_json::from_str(list).unwrap_or_else(|error| panic!("{list}: {error}"))
    }
}

/// The instructions of each stage of the Dockerfile; each stage begins with `FROM`.
fn stages() -> Vec<Vec<Instruction>> {
    let text = read("Dockerfile");
    let without_comments: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
    let mut stages: Vec<Vec<_>> = Vec::new();
    for line in
        without_comments.join("\n").replace("\\\n", " ").lines().filter(|line| !line.trim().is_empty())
    {
        let (name, arguments) = line.split_once(' ').unwrap_or_else(|| panic!("{line}: without arguments"));
        if name == "FROM" {
            stages.push(Vec::new());
        }
        let stage = stages.last_mut().expect("the first instruction is FROM");
        stage.push(Instruction { name: name.to_owned(), arguments: arguments.trim().to_owned() });
    }
    stages
}

/// The stage that becomes the image.
fn image() -> Vec<Instruction> {
    stages().pop().expect("the Dockerfile has a stage")
}

/// The only instruction of this name in a stage.
#[track_caller]
fn only<'a>(stage: &'a [Instruction], name: &str) -> &'a Instruction {
    let found: Vec<_> = stage.iter().filter(|instruction| instruction.name == name).collect();
    let [instruction] = found[..] else {
        panic!("{} instructions {name} in {}", found.len(), stage[0].arguments)
    };
    instruction
}

/// The value after an option such as `--uid`.
#[track_caller]
fn option<'a>(words: &[&'a str], name: &str) -> &'a str {
    let found = words.windows(2).find(|pair| pair[0] == name);
    found.unwrap_or_else(|| panic!("no {name} in {}", words.join(" ")))[1]
}

fn manifest() -> toml::Table {
    read("Cargo.toml").parse().unwrap()
}

/// The configuration of the image.
fn image_config() -> Config {
    let loaded = Config::parse(&read("etc/docker.toml"), Path::new("etc/docker.toml"), Language::Toml);
    let loaded = loaded.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(loaded.notices, []);
    loaded.config
}

/// The ports on which the server of the image listens.
fn image_ports() -> BTreeSet<u16> {
    let config = image_config();
    for addresses in [&config.bind, &config.http.bind] {
        let is_everywhere = addresses.iter().any(std::net::IpAddr::is_unspecified);
        assert!(is_everywhere, "what connects to a container does not come from its loopback");
    }
    let enabled = [config.counter.port.enable, config.semaphore.port.enable, config.http.enable];
    assert_eq!(enabled, [true; 3], "the image serves counters, semaphores and HTTP");
    [config.counter.port.port, config.semaphore.port.port, config.http.port].into()
}

/// The numbers of a list of ports such as `11215-11217`.
fn ports(range: &str) -> Vec<u16> {
    let (first, last) = range.split_once('-').unwrap_or((range, range));
    let number = |text: &str| text.parse::<u16>().unwrap_or_else(|error| panic!("{range}: {error}"));
    (number(first)..=number(last)).collect()
}

/// The entries of lists in `etc/compose.yml` that publish ports or mount files: `from:to` without the dash.
fn published() -> Vec<String> {
    let compose = read("etc/compose.yml");
    let entries = compose.lines().filter_map(|line| line.trim_start().strip_prefix("- "));
    entries.map(|entry| entry.trim_matches('"').to_owned()).filter(|entry| entry.contains(':')).collect()
}

#[test]
fn the_image_copies_what_its_build_makes_and_what_the_repository_has() {
    let stages = stages();
    let [build, image] = &stages[..] else { panic!("{} stages, not build and image", stages.len()) };
    let [_, "AS", name] = only(build, "FROM").words()[..] else { panic!("the first stage has no name") };
    let folder = only(build, "WORKDIR").arguments.as_str();
    assert_eq!(only(build, "COPY").arguments, ". .", "the whole repository is what is built");
    let cargo = only(build, "RUN").words();
    assert!(cargo.starts_with(&["cargo", "build"]) && cargo.contains(&"--locked"), "{cargo:?}");
    let profile = option(&cargo, "--profile");
    assert!(manifest()["profile"].get(profile).is_some(), "Cargo.toml has no profile {profile:?}");
    let made = format!("{folder}/target/{profile}/signalbox");

    let excluded = read(".dockerignore");
    for copy in image.iter().filter(|instruction| instruction.name == "COPY") {
        let mut words = copy.words();
        let from = words.iter().position(|word| word.starts_with("--from=")).map(|at| words.remove(at));
        let [source, target] = words[..] else {
            panic!("COPY {}: one source and one target", copy.arguments)
        };
        assert!(target.starts_with('/'), "COPY to {target}, which depends on the folder of the image");
        match from {
            Some(from) => {
                assert_eq!(from, format!("--from={name}"));
                assert_eq!(source, made, "the build makes {made}");
            }
            None => {
                assert!(
                    root().join(source).is_file(),
                    "the Dockerfile copies {source}, which does not exist"
                );
                let is_excluded = |line: &str| Path::new(source).starts_with(line.trim_matches('/'));
                assert!(!excluded.lines().any(is_excluded), ".dockerignore excludes {source}");
            }
        }
    }
    for needed in ["Cargo.toml", "Cargo.lock", "src", "crates"] {
        assert!(!excluded.lines().any(|line| line == needed), ".dockerignore excludes {needed}");
    }
}

#[test]
fn the_image_is_built_by_a_new_enough_compiler_for_its_own_debian() {
    let stages = stages();
    let (base, image) = (only(&stages[0], "FROM").words()[0], only(&stages[1], "FROM").words()[0]);
    let (version, debian) = base.strip_prefix("rust:").and_then(|tag| tag.split_once('-')).expect(base);
    let number =
        |version: &str| -> Vec<u32> { version.split('.').map(|part| part.parse().unwrap()).collect() };
    let needed = manifest()["workspace"]["package"]["rust-version"].as_str().unwrap().to_owned();
    assert!(
        number(version) >= number(&needed),
        "{base} is older than the rust-version {needed} of Cargo.toml"
    );
    assert_eq!(image, format!("debian:{debian}-slim"), "the program needs the C library it was built with");
}

#[test]
fn the_image_exposes_and_publishes_the_ports_of_its_configuration() {
    let expected = image_ports();
    let exposed: BTreeSet<_> = only(&image(), "EXPOSE").words().into_iter().flat_map(ports).collect();
    assert_eq!(exposed, expected, "EXPOSE and etc/docker.toml");

    let text = read("Dockerfile");
    let line =
        text.lines().find(|line| line.contains("docker run")).expect("the Dockerfile says how to run it");
    let words: Vec<_> = line.split_whitespace().collect();
    let range = option(&words, "--publish").rsplit(':').next().unwrap();
    assert_eq!(ports(range).into_iter().collect::<BTreeSet<_>>(), expected, "{line}");

    let compose: BTreeSet<_> = published()
        .iter()
        .filter_map(|entry| entry.strip_prefix("127.0.0.1:")?.split_once(':'))
        .filter(|(_, inside)| *inside != "9090") // Prometheus' own.
        .flat_map(|(outside, inside)| {
            assert_eq!(outside, inside, "the ports of etc/compose.yml are those of the documents");
            ports(inside)
        })
        .collect();
    assert_eq!(compose, expected, "etc/compose.yml and etc/docker.toml");
}

#[test]
fn prometheus_reads_from_where_the_server_is() {
    let config = image_config();
    let target_of = |file: &str| {
        let text = read(file);
        let line = text.lines().find_map(|line| line.trim().strip_prefix("- targets: ").map(str::to_owned));
        let [target] =
            serde_json::from_str::<Vec<String>>(&line.expect(file)).unwrap().try_into().expect(file);
        let (host, port) = target.split_once(':').expect("a port");
        (host.to_owned(), port.parse::<u16>().unwrap())
    };

    let (host, port) = target_of("etc/compose-prometheus.yml");
    assert_eq!(port, config.http.port);
    assert!(config.http.hosts.contains(&host), "etc/docker.toml refuses requests for {host:?}");
    let compose = read("etc/compose.yml");
    assert!(
        compose.lines().any(|line| line == format!("  {host}:")),
        "etc/compose.yml has no service {host:?}"
    );

    let shipped = Config::parse(&read("etc/signalbox.toml"), Path::new("etc/signalbox.toml"), Language::Toml);
    let shipped = shipped.unwrap_or_else(|error| panic!("{error}")).config;
    assert!(shipped.http.enable);
    assert_eq!(target_of("etc/prometheus.yml"), ("127.0.0.1".to_owned(), shipped.http.port));

    // Both of them read the rules, by a path beside their own.
    for file in ["etc/prometheus.yml", "etc/compose-prometheus.yml"] {
        assert!(read(file).contains("rule_files:\n  - prometheus-rules.yml\n"), "{file}");
    }
    for mount in
        published().iter().filter_map(|entry| entry.strip_prefix("./")?.split(':').next().map(str::to_owned))
    {
        assert!(
            root().join("etc").join(&mount).is_file(),
            "etc/compose.yml mounts {mount}, which does not exist"
        );
    }
}

#[test]
fn the_image_runs_as_a_user_without_rights_that_owns_the_data() {
    let image = image();
    let run = only(&image, "RUN").arguments.replace("&&", "\n");
    let command = |program: &str| -> Vec<String> {
        let line = run.lines().map(str::trim).find(|line| line.split(' ').next() == Some(program));
        line.unwrap_or_else(|| panic!("no {program}")).split_whitespace().map(str::to_owned).collect()
    };
    let (group, user, install) = (command("groupadd"), command("useradd"), command("install"));
    let words = |command: &'_ [String]| -> Vec<String> { command.to_vec() };
    let value = |command: &[String], name: &str| -> String {
        let command = words(command);
        option(&command.iter().map(String::as_str).collect::<Vec<_>>(), name).to_owned()
    };
    assert_eq!(
        only(&image, "USER").arguments,
        format!("{}:{}", value(&user, "--uid"), value(&group, "--gid"))
    );
    assert!(value(&user, "--uid").parse::<u32>().unwrap() > 0, "the server runs as root");
    assert!(value(&group, "--gid").parse::<u32>().unwrap() > 0, "the server runs in the group of root");
    let (user, group) = (user.last().unwrap(), group.last().unwrap());
    assert_eq!((&value(&install, "--owner"), &value(&install, "--group")), (user, group));

    let data = image_config().data_dir.expect("etc/docker.toml sets data_dir");
    assert_eq!(Path::new(install.last().unwrap()), data);
    assert_eq!(Path::new(&only(&image, "VOLUME").arguments), data, "what is outside the volume is lost");
    let mount = format!(":{}", data.display());
    assert!(
        published().iter().any(|entry| entry.ends_with(&mount)),
        "etc/compose.yml mounts no volume at {mount}"
    );
}

#[test]
fn the_image_starts_the_server_and_its_health_check_tells_whether_it_serves() {
    let image = image();
    let program = image.iter().filter(|instruction| instruction.name == "COPY").find_map(|copy| {
        let target = copy.words().pop()?;
        target.ends_with("/signalbox").then(|| target.to_owned())
    });
    assert_eq!(program.as_deref(), Some("/usr/bin/signalbox"), "on the PATH of the image");
    // A path of the image, as the file of the repository that it was copied from.
    let here = |argument: &String| -> OsString {
        let copied = image.iter().filter(|instruction| instruction.name == "COPY").map(Instruction::words);
        let source =
            copied.filter(|words| words.last() == Some(&argument.as_str())).map(|words| words[0]).next();
        source.map_or_else(|| argument.into(), |source| root().join(source).into())
    };
    let command_of = |arguments: &[String]| {
        let (program, arguments) = arguments.split_first().expect("a program");
        assert_eq!(program, "signalbox");
        let mut command = Command::new(SIGNALBOX);
        command.args(arguments.iter().map(here)).env_clear();
        command
    };

    let data = tempfile::tempdir().unwrap();
    let command_line = [only(&image, "ENTRYPOINT").exec_form(), only(&image, "CMD").exec_form()].concat();
    let check = only(&image, "HEALTHCHECK").exec_form();
    let [counters, semaphores, elsewhere] = free_ports().map(|port: u16| port.to_string());
    // The environment of the container is that of the server and of its health check.
    let start = |further: &[(&str, &str)]| {
        let in_container = |arguments: &[String]| {
            let mut command = command_of(arguments);
            command.env("SIGNALBOX_CONFIG_COUNTER__PORT", &counters);
            command.env("SIGNALBOX_CONFIG_SEMAPHORE__PORT", &semaphores);
            command.env("SIGNALBOX_CONFIG_BIND_IP", "127.0.0.1");
            command.env("SIGNALBOX_CONFIG_DATA_DIR", data.path());
            command.env("SIGNALBOX_SERVER", format!("127.0.0.1:{elsewhere}"));
            command.envs(further.iter().copied());
            command
        };
        let mut server = in_container(&command_line);
        server.args(["--http-port", "0", "--log-format", "json"]);
        let mut server = Daemon::spawn(server);
        server.ready();
        (server, outcome(in_container(&check)), in_container(&check))
    };
    let behind_a_proxy = [("SIGNALBOX_CONFIG_PROXIES", "127.0.0.0/8")];
    let semaphores_only = [("SIGNALBOX_CONFIG_COUNTER__ENABLE", "false")];
    for further in [&[][..], &behind_a_proxy, &semaphores_only] {
        let (server, while_it_runs, check) = start(further);
        assert!(fs::exists(data.path().join("signalbox.redb")).unwrap(), "{}", server.said());
        assert_eq!(while_it_runs.status.code(), Some(0), "{}", stderr(&while_it_runs));
        drop(server);
        let after_its_end = outcome(check);
        // Not 64, which a mistake in the arguments has.
        assert_eq!(after_its_end.status.code(), Some(69), "{}", stderr(&after_its_end));
    }
}

/// The assets of the Debian package: their sources and their targets.
fn assets() -> Vec<(String, String)> {
    let manifest = manifest();
    let assets = manifest["package"]["metadata"]["deb"]["assets"].as_array().unwrap();
    let text = |asset: &toml::Value, at: usize| asset[at].as_str().unwrap().to_owned();
    assets.iter().map(|asset| (text(asset, 0), text(asset, 1))).collect()
}

/// Whether a file of the repository has this path, whose last part may have one `*`.
fn exists(pattern: &str) -> bool {
    let path = root().join(pattern);
    let (folder, name) = (path.parent().unwrap(), path.file_name().unwrap().to_str().unwrap());
    let Some((start, end)) = name.split_once('*') else { return path.is_file() };
    let mut files = fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().file_name());
    files.any(|file| file.to_str().is_some_and(|file| file.starts_with(start) && file.ends_with(end)))
}

#[test]
fn the_assets_of_the_package_exist_or_are_made_before() {
    let script = read("etc/package");
    let libraries: toml::Table = read("crates/sysv/Cargo.toml").parse().unwrap();
    let library = libraries["lib"]["name"].as_str().unwrap();
    assert!(assets().len() > 10);
    for (source, _) in assets() {
        let made = match source.strip_prefix("target/") {
            None => exists(&source),
            Some(path) if path == "release/signalbox" || path == format!("release/lib{library}.so") => {
                script.contains("cargo build --locked --profile \"$profile\"\n")
            }
            Some("package/man/*.1") => script.contains("man --dir \"$generated/man\"\n"),
            Some(path) => {
                let shell = path
                    .strip_prefix("package/completions/")
                    .unwrap_or_else(|| panic!("nothing makes {source}"));
                let line =
                    script.lines().find(|line| line.starts_with("for shell in ")).expect("the completions");
                line.split([' ', ';']).any(|word| word == shell)
            }
        };
        assert!(made, "Cargo.toml packages {source:?}, which neither exists nor is made by etc/package");
    }
}

#[test]
fn the_package_has_what_its_service_and_its_documents_name() {
    let targets: BTreeSet<_> = assets()
        .into_iter()
        .map(|(source, target)| match target.ends_with('/') {
            true => format!("/{target}{}", source.rsplit('/').next().unwrap()),
            false => format!("/{target}"),
        })
        .collect();
    let unit = read("etc/signalbox.service");
    for path in
        unit.lines().filter_map(|line| line.split_once("Exec")).flat_map(|(_, line)| line.split(['=', ' ']))
    {
        let path = path.trim_start_matches('-');
        // Every system has a shell.
        let is_there = !path.starts_with('/') || targets.contains(path) || path == "/bin/sh";
        assert!(is_there, "the unit needs {path}, which the package lacks");
    }
    let account = unit.lines().find_map(|line| line.strip_prefix("User=")).unwrap();
    let made = read("etc/signalbox.sysusers").lines().any(|line| line.starts_with(&format!("u {account} ")));
    assert!(made, "the package makes no account {account:?}");

    let operations = read("docs/operations.md");
    let words = operations.split(|c: char| c.is_whitespace() || "`(),;".contains(c));
    let named: BTreeSet<_> = words.filter(|word| word.starts_with("/usr/share/signalbox/")).collect();
    assert!(
        named.len() >= 3,
        "the page says where the rules, the dashboard and the configuration of Prometheus are"
    );
    for path in named {
        let is_packaged = targets.contains(path.trim_end_matches('.'));
        assert!(is_packaged, "docs/operations.md names {path}, which the package lacks");
    }
}
