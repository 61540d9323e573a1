//! What clients may do: rights by network and by token, reloads, expiry, refusals, and the audit log.

use std::io::Read;
use std::net::{IpAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::support::caller::{Caller, Changes, LONG, NOW, counted, declare_new, limit, one_of, semaphore};
use crate::support::daemon::*;
use crate::support::sysv_program::SysvProgram;
use crate::support::*;
use nix::sys::signal::Signal;
use nix::unistd::geteuid;
use serde_json::Value;
use signalbox_client::{Address, Client, Lost, Token};
use signalbox_model::sysv;
use signalbox_model::{
    AddressRange, Cancellation, Claim, Declaration, GrantId, Idle, IfExists, Milliseconds, Namespace, Notice,
    Operation, Removal, Resizing, Revocation, Scope, ServiceChange, SessionId, SessionKind, Status,
    TokenRefusal,
};
use signalbox_protocol::{
    Claims, Credentials, Extended, Features, Opaque, Operations, ResponseFrame, SysvRequest, WAIT_FOREVER_MS,
    Wait,
};

const NOT_PERMITTED: u8 = Status::NotPermitted as u8;

/// The number of names in a Dump that the server ends.
const NAMES: u32 = 400;

/// The address of a proxy, whose header states another machine as the client.
const PROXY: &str = "127.0.0.9";

/// A daemon with a section `[access]`, its configuration, and the file of its tokens.
struct Guarded {
    daemon: Daemon,
    file: ConfigFile,
}

impl Guarded {
    fn start(access: &str) -> Self {
        let file = ConfigFile::toml("");
        file.write(&Self::config(&file, access));
        let first = token(&file.directory().join("tokens.toml"), &["create", "first", "--rights", "all"]);
        assert!(first.status.success(), "{}", stderr(&first));
        let mut daemon = Daemon::spawn(serve_file_on_any_ports(&file.path()));
        daemon.ready();
        Self { daemon, file }
    }

    fn config(file: &ConfigFile, access: &str) -> String {
        let directory = file.directory().display();
        format!(
            "proxies = '{PROXY}'\n[access]\n\
             tokens = '{directory}/tokens.toml'\naudit_log = '{directory}/audit.log'\n{access}\n"
        )
    }

    fn tokens(&self) -> PathBuf {
        self.file.directory().join("tokens.toml")
    }

    /// Creates a token that the server accepts.
    fn create(&mut self, name: &str, options: &[&str]) -> String {
        let output = token(&self.tokens(), &[&["create", name][..], options].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        self.reload();
        String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
    }

    fn reload(&mut self) {
        self.daemon.reload("the configuration was read again");
    }

    fn from(&mut self, address: &str) -> Caller {
        Caller::new(Wire::connect_from(address, self.daemon.address("counter")))
    }

    fn audit(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.file.directory().join("audit.log")).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

/// `signalbox token`.
fn token(file: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(SIGNALBOX);
    command.arg("token").args(arguments).arg("--file").arg(file);
    outcome(command)
}

fn show(caller: &mut Caller, token: &[u8]) -> ResponseFrame {
    let features = Features::default();
    caller.ask(&Extended::Hello { version: 1, label: b"", credentials: Credentials(token), features })
}

fn get(caller: &mut Caller, name: &[u8]) -> u8 {
    caller.wire.ask(GET, &[&(name.len() as u16).to_be_bytes()[..], name].concat()).status
}

fn acquire(caller: &mut Caller, name: &[u8]) -> u8 {
    let claim = one_of(9, name);
    let opaque = caller.want(claim, NOW);
    caller.answer(opaque).status
}

/// Every extended request that needs a right, by that right.
fn requests(caller: &mut Caller) -> Vec<(&'static str, Extended<'static>)> {
    let ids = caller.ids();
    let (namespace, name) = (Namespace::Semaphores, &b"s"[..]);
    let claim = Claim { namespace: Some(namespace), name, resources: 1, maximum: 1, slot: None };
    let claims = Claims::new(Box::leak(vec![claim].into_boxed_slice())).unwrap();
    let declaration = Declaration { name, capacity: 1, numbered: false, label: b"" };
    let grace = Milliseconds(0);
    let nobody = "2001:db8::1".parse().unwrap();
    let clients = AddressRange { first: nobody, last: nobody };
    let expected = None;
    let changes = [
        Operation::Declare { if_exists: IfExists::Fail, declarations: vec![declaration] },
        Operation::Resize { expected, how: Resizing::To(2), name },
        Operation::ChangeService { expected, how: ServiceChange::Pause, name },
        Operation::ChangeService { expected, how: ServiceChange::SlotOut(0), name },
        Operation::Remove { expected, how: Removal::IfIdle, name },
        Operation::DeleteCounter { name },
        Operation::Cancel(Cancellation::Request(GrantId(1))),
        Operation::Revoke { what: Revocation::Grant(GrantId(1)), grace },
        Operation::Revoke { what: Revocation::Addresses(clients), grace },
        Operation::Revoke { what: Revocation::Identity(b"token:nobody"), grace },
    ];
    let mut requests = vec![
        ("acquire", Extended::OpenSession { ttl: None, label: b"", key: None }),
        ("acquire", Extended::KeepAlive),
        ("acquire", Extended::AcquireGrant { ids, claim, queueing: NOW, place: None, is_shared: false }),
        ("acquire", Extended::AcquireAll { ids, queueing: NOW, claims, place: None }),
        ("read", Extended::VerifyGrant { grant: GrantId(1) }),
        ("read", Extended::Holders { namespace, name }),
        ("read", Extended::Waiters { namespace, name }),
        ("read", Extended::Inspect { namespace: Some(namespace), name }),
        ("read", Extended::AwaitIdle { wait: Wait::NotAtAll, until: Idle::Level(0), namespace, name }),
        ("read", Extended::List { prefix: b"" }),
        ("read", Extended::Sessions),
        ("read", Extended::Held { sessions: vec![SessionId::new(1)] }),
        ("read", Extended::Watch { namespace, scope: Scope::Name(name) }),
        ("read", Extended::Watch { namespace, scope: Scope::Prefix(b"") }),
        ("administer", Extended::MayAdminister { namespace, name }),
        ("administer", Extended::Export),
        ("none", Extended::ReleaseGrant { ids, grant: GrantId(1), is_done: false }),
        ("none", Extended::CloseSession),
        (
            "none",
            Extended::Hello {
                version: 1,
                label: b"",
                credentials: Credentials(b""),
                features: Features::default(),
            },
        ),
    ];
    requests.extend(changes.map(|operation| ("administer", Extended::Change { ids, operation })));
    requests
}

#[test]
fn every_operation_needs_its_right_and_giving_back_needs_none() {
    let mut guarded = Guarded::start(
        "networks = ['127.0.0.2 read', '127.0.0.3 acquire', '127.0.0.4 administer', '127.0.0.5 none', '127.0.0.6 all']",
    );
    let mut refused = 0;
    for (address, rights) in [
        ("127.0.0.2", &["none", "read"][..]),
        ("127.0.0.3", &["none", "acquire"]),
        ("127.0.0.4", &["none", "administer"]),
        ("127.0.0.5", &["none"]),
        ("127.0.0.6", &["none", "read", "acquire", "administer"]),
        ("127.0.0.1", &["none", "read", "acquire", "administer"]),
    ] {
        let count = requests(&mut guarded.from(address)).len();
        for index in 0..count {
            // A connection of its own, because watches and listings send more than one answer.
            let mut caller = guarded.from(address);
            // A watch needs one.
            assert_eq!(show(&mut caller, b"").status, OK);
            let (right, request) = requests(&mut caller).swap_remove(index);
            let is_refused = caller.ask(&request).status == NOT_PERMITTED;
            assert_eq!(is_refused, !rights.contains(&right), "{request:?} from {address}");
            refused += u64::from(is_refused);
        }
        let mut caller = guarded.from(address);
        assert_eq!(caller.wire.ask(NOOP, &[]).status, OK);
        assert_eq!(get(&mut caller, b"x") == NOT_PERMITTED, !rights.contains(&"read"), "Get from {address}");
        let acquired = caller.wire.ask(ACQUIRE, &[&[0, 0, 0, 1, 0, 0, 0, 1, 0, 1][..], b"p"].concat()).status;
        assert_eq!(acquired == NOT_PERMITTED, !rights.contains(&"acquire"), "Acquire from {address}");
        let released = caller.wire.ask(RELEASE, &[&[0, 0, 0, 1, 0, 1][..], b"p"].concat()).status;
        assert_ne!(released, NOT_PERMITTED, "Release from {address}");
        refused += ["read", "acquire"].iter().filter(|right| !rights.contains(right)).count() as u64;
    }
    for plain in [STATS, DUMP] {
        assert_eq!(guarded.from("127.0.0.3").wire.ask(plain, &[]).status, NOT_PERMITTED);
    }
    let mut administrator = guarded.from("127.0.0.1");
    assert_eq!(administrator.wire.stat("refused_rights"), refused + 2);
}

#[test]
fn a_token_limits_its_client_to_its_names() {
    let mut guarded = Guarded::start("anonymous = 'none'");
    let secret = guarded.create("web", &["--rights", "read,acquire", "--area", "counter:web/"]);
    let mut caller = guarded.from("127.0.0.1");
    assert_eq!(show(&mut caller, secret.as_bytes()).status, OK);
    assert_eq!(acquire(&mut caller, b"web/1"), OK);
    assert_eq!(get(&mut caller, b"web/1"), OK);
    for name in [&b"web"[..], b"my-web/1", b"WEB/1", b"other"] {
        assert_eq!((acquire(&mut caller, name), get(&mut caller, name)), (NOT_PERMITTED, NOT_PERMITTED));
    }
    let watch = |prefix| Extended::Watch { namespace: Namespace::Counters, scope: Scope::Prefix(prefix) };
    assert_eq!(caller.ask(&watch(b"web")).status, NOT_PERMITTED);
    assert_eq!(caller.wire.ask(DUMP, &[]).status, NOT_PERMITTED);
    assert_ne!(caller.ask(&watch(b"web/")).status, NOT_PERMITTED);
    let operator = guarded.create("operator", &["--rights", "administer", "--area", "semaphore:web/"]);
    let mut caller = guarded.from("127.0.0.1");
    assert_eq!(show(&mut caller, operator.as_bytes()).status, OK);
    let declare = |names: [&'static [u8]; 2]| Operation::Declare {
        if_exists: IfExists::Fail,
        declarations: names.map(|name| counted(name, 1)).to_vec(),
    };
    for names in [[&b"web/a"[..], b"other"], [b"other", b"web/a"]] {
        assert_eq!(caller.change(declare(names)).status, NOT_PERMITTED, "each name needs the right");
    }
    assert_eq!(caller.change(declare([b"web/a", b"web/b"])).status, OK, "and nothing was declared");
}

#[test]
fn a_client_verifies_grants_only_of_its_session_and_of_names_that_it_may_read() {
    let mut guarded = Guarded::start("anonymous = 'none'");
    let secret = guarded.create("web", &["--rights", "read,acquire", "--area", "counter:web/"]);
    let mut caller = guarded.from("127.0.0.1");
    let mut other = guarded.from("127.0.0.1");
    let grant = |caller: &mut Caller, names: &[&'static [u8]]| {
        let claims: Vec<_> = names.iter().map(|name| one_of(9, name)).collect();
        let ids = caller.ids();
        let claims = Claims::new(&claims).unwrap();
        caller
            .ask(&Extended::AcquireAll { ids, queueing: NOW, claims, place: None })
            .all_granted()
            .unwrap()
            .grant
    };
    let [hidden, shown, mixed] =
        [&[&b"secret"[..]][..], &[b"web/1"], &[b"secret", b"web/2"]].map(|names| grant(&mut other, names));
    let own = grant(&mut caller, &[b"secret"]);
    assert_eq!(show(&mut caller, secret.as_bytes()).status, OK, "from now on, it may do less");
    let mut verify = |grant| caller.ask(&Extended::VerifyGrant { grant });
    assert_eq!([own, shown, mixed].map(|grant| verify(grant).status), [OK; 3]);
    let (refused, unknown) = (verify(hidden), verify(GrantId(1 << 60)));
    assert_eq!(refused.status, Status::NotAcquired.code());
    assert_eq!((refused.status, refused.body), (unknown.status, unknown.body));
    assert_eq!(other.ask(&Extended::VerifyGrant { grant: hidden }).status, OK);
}

#[test]
fn sessions_are_listed_and_revoked_by_the_tokens_of_their_clients() {
    let mut guarded = Guarded::start("");
    let [web, batch] = ["web", "batch"].map(|name| guarded.create(name, &["--rights", "acquire"]));
    let mut open = |secret: Option<&str>| {
        let mut caller = guarded.from("127.0.0.1");
        if let Some(secret) = secret {
            assert_eq!(show(&mut caller, secret.as_bytes()).status, OK);
        }
        let session = caller.open(60_000).session;
        (caller, session)
    };
    let [(mut one, first), (_two, second)] = [open(Some(&web)), open(Some(&web))];
    let [(_three, third), (_four, fourth), (mut late, fifth)] = [open(Some(&batch)), open(None), open(None)];
    let mut administrator = guarded.from("127.0.0.1");
    let mut identities = || {
        let opaque = administrator.send(&Extended::Sessions);
        let entries = std::iter::from_fn(|| administrator.answer(opaque).session_entry().unwrap());
        let leased = entries.filter(|entry| entry.kind == SessionKind::Leased);
        leased.map(|entry| (entry.session, entry.identity.to_vec())).collect::<Vec<_>>()
    };
    let expected =
        [(first, "token:web"), (second, "token:web"), (third, "token:batch"), (fourth, ""), (fifth, "")];
    let expected = expected.map(|(session, identity)| (session, identity.as_bytes().to_vec()));
    assert_eq!(identities(), expected);
    let mut other = guarded.from("127.0.0.1");
    let mut revoke = |identity| {
        let what = Revocation::Identity(identity);
        other.change(Operation::Revoke { what, grace: Milliseconds(0) }).revoked()
    };
    assert_eq!([revoke(b"web"), revoke(b"token:web"), revoke(b"token:web")], [0, 2, 0]);
    // A token that is shown later counts too, for the session that is attached and for those that are opened afterwards.
    assert_eq!(show(&mut late, web.as_bytes()).status, OK);
    assert_eq!(identities()[2..], [(fifth, b"token:web".to_vec())]);
    let sixth = late.open(60_000).session;
    assert_eq!(identities()[3..], [(sixth, b"token:web".to_vec())]);
    assert_eq!(revoke(b"token:web"), 2);
    assert_eq!(identities(), expected[2..4]);
    assert!(matches!(one.next().notice(), Ok(Some(Notice::SessionRevoked { .. }))));
    assert_eq!(show(&mut one, web.as_bytes()).status, OK, "its connection stays");
    assert!(
        guarded.audit().iter().any(|line| line["operation"] == "revoke the leased sessions of \"token:web\"")
    );
}

#[test]
fn wrong_tokens_are_refused_counted_and_never_logged_and_many_end_the_connection() {
    let mut guarded = Guarded::start("");
    let secret = guarded.create("web", &["--rights", "read"]);
    let wrong: Vec<Vec<u8>> = vec![
        secret[..secret.len() - 1].into(),
        secret.to_uppercase().into(),
        format!("{secret}\0").into(),
        secret.replace("sbx_", "sbx-").into(),
        format!("{}{}", &secret[..secret.len() - 1], if secret.ends_with('0') { '1' } else { '0' }).into(),
        vec![b'x'; 65_000],
        vec![0; 85],
    ];
    for token in &wrong {
        let mut caller = guarded.from("127.0.0.1");
        let answer = show(&mut caller, token);
        assert_eq!(answer.status, NOT_PERMITTED);
        assert!(
            matches!(answer.token_refusal(), Some(TokenRefusal::Malformed | TokenRefusal::Unknown)),
            "{answer:?}"
        );
        assert_eq!(acquire(&mut caller, b"x"), OK, "the rights are those without a token");
    }
    let mut caller = guarded.from("127.0.0.2");
    for _ in 0..3 {
        assert_eq!(show(&mut caller, b"sbx_").status, NOT_PERMITTED);
    }
    assert!(caller.wire.is_closed());
    for _ in 0..3 {
        for _ in 0..2 {
            // A client may show a limited number of wrong tokens, over all its connections.
            let mut caller = guarded.from("127.0.0.1");
            assert_eq!(show(&mut caller, b"sbx_").status, NOT_PERMITTED);
        }
    }
    let mut caller = guarded.from("127.0.0.1");
    assert_eq!(show(&mut caller, b"sbx_").status, NOT_PERMITTED);
    assert!(caller.wire.is_closed());
    let mut honest = guarded.from("127.0.0.1");
    assert_eq!(show(&mut honest, secret.as_bytes()).status, OK, "a valid token is still accepted");
    assert_eq!(honest.wire.stat("failed_authentications"), wrong.len() as u64 + 3 + 6 + 1);
    let line = guarded.daemon.logged_message("a client is refused");
    assert_eq!(text(&line, "operation"), "Hello");
    guarded.daemon.signal(Signal::SIGTERM);
    guarded.daemon.exit_status();
    let secret_part = secret.rsplit('_').next().unwrap();
    assert!(!guarded.daemon.said().to_lowercase().contains(&secret_part[..16]));
}

#[test]
fn a_revoked_token_loses_its_rights_on_open_connections() {
    let mut guarded = Guarded::start("anonymous = 'none'\nnetworks = ['127.0.0.0/8 none']");
    let secret = guarded.create("web", &["--rights", "read,acquire", "--area", "counter"]);
    let [mut caller, mut waiting, mut watching] = [(); 3].map(|()| {
        let mut caller = guarded.from("127.0.0.1");
        assert_eq!(show(&mut caller, secret.as_bytes()).status, OK);
        caller
    });
    caller.open(60_000);
    let grant = caller.take(one_of(1, b"x")).grant;
    let queued = waiting.want(one_of(1, b"x"), LONG);
    waiting.sync();
    let watch = watching.send(&Extended::Watch { namespace: Namespace::Counters, scope: Scope::Name(b"x") });
    for _ in 0..2 {
        watching.answer(watch);
    }
    guarded.reload();
    // A reload that takes no right changes nothing.
    waiting.sync();
    watching.sync();
    assert!(token(&guarded.tokens(), &["revoke", "web"]).status.success());
    assert_eq!(acquire(&mut caller, b"y"), OK, "until the file is read");
    // A further reload does not make the server forget why.
    for _ in 0..2 {
        guarded.reload();
        assert_eq!(acquire(&mut caller, b"z"), NOT_PERMITTED);
        let refused = caller.ask(&Extended::KeepAlive);
        assert_eq!((refused.status, refused.token_refusal()), (NOT_PERMITTED, Some(TokenRefusal::Unknown)));
    }
    // They have sent nothing since, and would be granted or shown what they may not have.
    assert_eq!(waiting.answer(queued).status, Status::Canceled.code());
    assert_eq!(watching.answer(watch).status, NOT_PERMITTED);
    assert_eq!(caller.give_back(grant), OK, "a release needs no right");
    assert_eq!(show(&mut caller, secret.as_bytes()).status, NOT_PERMITTED);
    // Another token is accepted, so a refusal no longer names the former one as its cause.
    let reader = guarded.create("reader", &["--rights", "read"]);
    assert_eq!(show(&mut caller, reader.as_bytes()).status, OK);
    let refused = caller.ask(&Extended::KeepAlive);
    assert_eq!((refused.status, refused.token_refusal()), (NOT_PERMITTED, None));
}

#[test]
fn a_missing_right_never_selects_the_other_kind_of_a_limit() {
    let mut guarded = Guarded::start("anonymous = 'none'\nnetworks = ['127.0.0.0/8 none']");
    let [counters, semaphores, admin] = [
        ("counters", &["--rights", "read,acquire", "--area", "counter"][..]),
        ("semaphores", &["--rights", "read,acquire", "--area", "semaphore"]),
        ("admin", &["--rights", "all"]),
    ]
    .map(|(name, options)| {
        let secret = guarded.create(name, options);
        let mut caller = guarded.from("127.0.0.1");
        assert_eq!(show(&mut caller, secret.as_bytes()).status, OK);
        caller
    });
    let (mut counters, mut semaphores, mut admin) = (counters, semaphores, admin);
    declare_new(&mut admin, counted(b"gpu", 3));
    let asked = |caller: &mut Caller, name| {
        let opaque = caller.want(limit(3, name), LONG);
        caller.answer(opaque).status
    };
    assert_eq!(asked(&mut semaphores, b"gpu"), OK);
    assert_eq!(asked(&mut counters, b"tenant"), OK);
    assert_eq!(asked(&mut counters, b"gpu"), NOT_PERMITTED);
    assert_eq!(asked(&mut semaphores, b"tenant"), NOT_PERMITTED);
    let inspect = |caller: &mut Caller, name| caller.ask(&Extended::Inspect { namespace: None, name }).status;
    assert_eq!((inspect(&mut counters, b"gpu"), inspect(&mut semaphores, b"gpu")), (NOT_PERMITTED, OK));
}

fn keep_alive(caller: &mut Caller) -> u8 {
    caller.ask(&Extended::KeepAlive).status
}

/// The names are checked in steps of 256, and the last one is the name that the client may no longer acquire.
#[test]
fn a_session_is_not_renewed_while_it_holds_what_its_client_may_not_acquire() {
    let mut guarded = Guarded::start("networks = ['127.0.0.0/8 acquire counter:public/']");
    let options = ["--rights", "acquire", "--area", "counter:web/", "--area", "counter:public/"];
    let [first, second] = ["first-web", "second-web"].map(|name| guarded.create(name, &options));
    let mut caller = guarded.from("127.0.0.1");
    assert_eq!(show(&mut caller, first.as_bytes()).status, OK);
    let session = caller.open(60_000);
    for number in 0..300 {
        caller.take(one_of(1, format!("public/{number}").as_bytes()));
    }
    let grant = caller.take(one_of(1, b"web/1")).grant;
    assert!(token(&guarded.tokens(), &["revoke", "first-web"]).status.success());
    guarded.reload();
    assert_eq!(keep_alive(&mut caller), NOT_PERMITTED);
    assert_eq!(
        acquire(&mut caller, b"public/x"),
        NOT_PERMITTED,
        "the answer would say that the lease is renewed"
    );

    let mut rotated = guarded.from("127.0.0.1");
    assert_eq!(show(&mut rotated, second.as_bytes()).status, OK);
    assert_eq!((rotated.attach(session), keep_alive(&mut rotated)), (OK, OK), "it has the same rights");

    let mut anonymous = guarded.from("127.0.0.1");
    assert_eq!((anonymous.attach(session), keep_alive(&mut anonymous)), (OK, NOT_PERMITTED));
    for _ in 0..301 {
        anonymous.ids();
    }
    assert_eq!(anonymous.give_back(grant), OK);
    assert_eq!(keep_alive(&mut anonymous), OK);
    assert_eq!(acquire(&mut anonymous, b"public/x"), OK);
}

/// A session is not renewed either if the forbidden name is of the other kind, or is found in an early step of the check.
#[test]
fn what_a_session_holds_is_checked_by_the_rules_of_now() {
    let mut guarded = Guarded::start("networks = ['127.0.0.0/8 all']");
    let mut all = guarded.from("127.0.0.1");
    declare_new(&mut all, counted(b"gpu", 1));
    for (area, held) in [("counter", semaphore(1, b"gpu")), ("semaphore", one_of(1, b"tenant"))] {
        let secret = guarded.create(area, &["--rights", "acquire", "--area", area]);
        let mut caller = guarded.from("127.0.0.1");
        caller.open(60_000);
        let held = caller.take(held).grant;
        assert_eq!(show(&mut caller, secret.as_bytes()).status, OK);
        let claims = [one_of(1, b"x")];
        let (ids, claims) = (caller.ids(), Claims::new(&claims).unwrap());
        let all = Extended::AcquireAll { ids, queueing: NOW, claims, place: None };
        assert_eq!(
            (keep_alive(&mut caller), caller.ask(&all).status),
            (NOT_PERMITTED, NOT_PERMITTED),
            "{area}"
        );
        assert_eq!((caller.give_back(held), keep_alive(&mut caller)), (OK, OK), "{area}");
    }
    // The check takes steps of 256 names.
    let options = ["--rights", "acquire", "--area", "counter:web/", "--area", "counter:public/"];
    let web = guarded.create("web", &options);
    let mut caller = guarded.from("127.0.0.1");
    caller.open(60_000);
    caller.take(one_of(1, b"web/1"));
    for number in 0..300 {
        caller.take(one_of(1, format!("public/{number}").as_bytes()));
    }
    assert_eq!((show(&mut caller, web.as_bytes()).status, keep_alive(&mut caller)), (OK, OK));
    assert!(token(&guarded.tokens(), &["revoke", "web"]).status.success());
    let public = "networks = ['127.0.0.0/8 acquire counter:public/']";
    guarded.file.write(&Guarded::config(&guarded.file, public));
    guarded.reload();
    assert_eq!(keep_alive(&mut caller), NOT_PERMITTED);
}

#[test]
fn a_session_whose_client_lost_its_rights_ends_although_it_is_attached_again_and_again() {
    let access = "networks = ['127.0.0.0/8 acquire counter:public/']\n[session]\nmin_ttl = 1";
    let mut guarded = Guarded::start(access);
    let secret = guarded.create("web", &["--rights", "acquire", "--area", "counter:web/"]);
    let mut caller = guarded.from("127.0.0.1");
    assert_eq!(show(&mut caller, secret.as_bytes()).status, OK);
    let session = caller.open(1000);
    caller.take(one_of(1, b"web/1"));
    assert!(token(&guarded.tokens(), &["revoke", "web"]).status.success());
    guarded.reload();
    drop(caller);
    let mut other = guarded.from("127.0.0.1");
    eventually("the session ends", || {
        let opened =
            Extended::OpenSession { ttl: Some(Milliseconds(1000)), label: b"", key: Some(session.key) };
        let attached = other.attach(session);
        let is_attached = attached == OK;
        assert!(!is_attached || other.ask(&opened).status == NOT_PERMITTED || other.attach(session) != OK);
        !is_attached
    });
}

#[test]
fn a_second_token_ends_what_only_the_first_one_permitted() {
    let mut guarded = Guarded::start("anonymous = 'none'\nnetworks = ['127.0.0.0/8 none']");
    let first = guarded.create("first-job", &["--rights", "read,acquire"]);
    let second = guarded.create("second-job", &["--rights", "acquire", "--area", "counter:y/"]);
    let mut holder = guarded.from("127.0.0.1");
    let mut caller = guarded.from("127.0.0.1");
    for connection in [&mut holder, &mut caller] {
        assert_eq!(show(connection, first.as_bytes()).status, OK);
    }
    holder.take(one_of(1, b"x"));
    let queued = caller.want(one_of(1, b"x"), LONG);
    let watch = caller.send(&Extended::Watch { namespace: Namespace::Counters, scope: Scope::Prefix(b"") });
    for _ in 0..2 {
        caller.answer(watch);
    }
    let (label, credentials) = (&b""[..], Credentials(second.as_bytes()));
    let hello =
        caller.send(&Extended::Hello { version: 1, label, credentials, features: Features::default() });
    assert_eq!(caller.answer(watch).status, NOT_PERMITTED);
    assert_eq!(caller.answer(hello).status, OK);
    assert_eq!(caller.answer(queued).status, Status::Canceled.code());
}

#[test]
fn a_wait_until_a_name_is_idle_ends_with_the_right_to_read() {
    let mut guarded = Guarded::start("networks = ['127.0.0.0/8 read,acquire']");
    let mut caller = guarded.from("127.0.0.1");
    caller.take(one_of(1, b"x"));
    let (namespace, name) = (Namespace::Counters, &b"x"[..]);
    let wait = Extended::AwaitIdle { wait: Wait::ServerDefault, until: Idle::Level(0), namespace, name };
    let waiting = caller.send(&wait);
    caller.sync();
    guarded.file.write(&Guarded::config(&guarded.file, "networks = ['127.0.0.0/8 acquire']"));
    guarded.reload();
    assert_eq!(caller.answer(waiting).status, Status::Canceled.code());
}

#[test]
fn a_call_that_waits_for_a_semaphore_set_ends_with_the_right_to_acquire() {
    let mut guarded = Guarded::start("networks = ['127.0.0.0/8 none']");
    let secret = guarded.create("jobs", &["--rights", "acquire", "--area", "sysv"]);
    let mut caller = guarded.from("127.0.0.1");
    assert_eq!(show(&mut caller, secret.as_bytes()).status, OK);
    let send = |caller: &mut Caller, opaque, request: &SysvRequest<'_>| {
        let mut bytes = Vec::new();
        request.compose(opaque, &mut bytes);
        caller.wire.send(&bytes);
    };
    let opaque = Opaque([7; 4]);
    let (user, groups) = (sysv::Caller { uid: 1, gid: 1 }, Vec::new());
    send(
        &mut caller,
        opaque,
        &SysvRequest::OpenProcess { ttl: None, pid: 7, caller: user, groups, label: b"" },
    );
    caller.answer(opaque).opened_process().unwrap();
    let flags = sysv::IPC_CREAT | 0o600;
    let get = SysvRequest::SemGet { ids: caller.ids(), caller: user, key: 7, count: 1, flags };
    send(&mut caller, opaque, &get);
    let (set, ..) = caller.answer(opaque).call_set().unwrap().unwrap();
    let mut bytes = Vec::new();
    let take = [sysv::Operation { number: 0, change: -1, flags: 0 }];
    let operations = Operations::encode(&take, &mut bytes).unwrap();
    let ids = caller.ids();
    send(
        &mut caller,
        opaque,
        &SysvRequest::SemOp { ids, caller: user, set, wait_ms: WAIT_FOREVER_MS, operations },
    );
    caller.sync();
    assert!(token(&guarded.tokens(), &["revoke", "jobs"]).status.success());
    guarded.reload();
    assert!(caller.answer(opaque).call_done().unwrap().is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_whose_token_was_revoked_does_not_believe_in_its_permit_after_its_lease() {
    let mut guarded = Guarded::start("networks = ['127.0.0.0/8 none']\n[session]\nmin_ttl = 1");
    let [secret, other] = ["web", "other"].map(|name| guarded.create(name, &["--rights", "acquire"]));
    let address: Address = guarded.daemon.address("counter").to_string().parse().unwrap();
    let client = |secret: &str| {
        let token = Token::new(secret);
        Client::builder(address.clone()).ttl(Duration::from_secs(1)).token(token).build().unwrap()
    };
    let (client, other) = (client(&secret), client(&other));
    let permit = client.counter(b"x").maximum(1).acquire().await.unwrap();
    assert!(token(&guarded.tokens(), &["revoke", "web"]).status.success());
    guarded.reload();
    // Refused requests do not renew its lease.
    let refused = tokio::spawn(async move {
        loop {
            let _ = client.counter(b"y").maximum(1).try_acquire().await;
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    // The next one gets it when the lease has ended. By then the client must have noticed.
    let next =
        tokio::time::timeout(PATIENCE, other.counter(b"x").maximum(1).acquire()).await.unwrap().unwrap();
    assert!(!permit.is_held());
    refused.abort();
    assert_eq!(tokio::time::timeout(PATIENCE, permit.lost()).await.unwrap(), Lost::Refused);
    next.release().await.unwrap();
}

#[test]
fn run_says_that_its_token_was_revoked() {
    let mut guarded = Guarded::start("networks = ['127.0.0.0/8 none']\n[session]\nmin_ttl = 1");
    let secret = guarded.create("web", &["--rights", "acquire"]);
    let mut command = Command::new(SIGNALBOX);
    let script = "echo ready; exec sleep 1000";
    command.args(["run", "x", "--max", "1", "--lease", "2", "--", "sh", "-c", script]);
    command.env("SIGNALBOX_SERVER", guarded.daemon.address("counter").to_string());
    command.env("SIGNALBOX_TOKEN", &secret).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut run = command.spawn().unwrap();
    run.stdout.as_mut().unwrap().read_exact(&mut [0; 6]).unwrap();
    assert!(token(&guarded.tokens(), &["revoke", "web"]).status.success());
    guarded.reload();
    let output = run.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(69));
    assert_eq!(stderr(&output).matches("was revoked").count(), 1, "{}", stderr(&output));
}

#[test]
fn a_token_that_cannot_be_printed_is_not_created() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("tokens.toml");
    for output in ["/dev/full", "&-"] {
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(format!("exec \"$0\" token create web --rights all --file \"$1\" >{output}"));
        shell.arg(SIGNALBOX).arg(&file);
        assert_eq!(outcome(shell).status.code(), Some(74), "{output}");
        assert!(!file.exists(), "{output}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_shows_the_token_that_has_replaced_a_revoked_one() {
    let mut guarded = Guarded::start("networks = ['127.0.0.0/8 none']");
    let [old, new] = ["old", "new"].map(|name| guarded.create(name, &["--rights", "read,acquire"]));
    let file = guarded.file.directory().join("client.token");
    std::fs::write(&file, old).unwrap();
    let address: Address = guarded.daemon.address("counter").to_string().parse().unwrap();
    let builder = Client::builder(address).token(Token::from_file(&file).unwrap());
    let client = builder.ttl(Duration::from_secs(60)).connect().await.unwrap();
    let permit = client.counter(b"x").maximum(1).acquire().await.unwrap();
    std::fs::write(&file, new).unwrap();
    assert!(token(&guarded.tokens(), &["revoke", "old"]).status.success());
    guarded.reload();
    // The first refusal lets it read the file.
    let acquired = tokio::time::timeout(PATIENCE, async {
        loop {
            match client.counter(b"y").maximum(1).acquire().await {
                Err(error) if error.status() == Some(Status::NotPermitted) => {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                acquired => break acquired,
            }
        }
    });
    acquired.await.unwrap().unwrap().release().await.unwrap();
    assert!(permit.is_held());
    assert!(client.direct().await.unwrap().verify(permit.id()).await.is_ok());
    // A file that cannot be read leaves the token in use.
    std::fs::remove_file(&file).unwrap();
    assert!(client.direct().await.is_ok());
    permit.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_a_server_refuses_does_not_go_on_without_a_permit() {
    let mut guarded = Guarded::start("networks = ['127.0.0.0/8 none']");
    let address = guarded.daemon.address("counter").to_string().parse().unwrap();
    let client = Client::builder(address).unreachable_after(Duration::from_millis(200)).build().unwrap();
    let refused = client.counter(b"x").maximum(1).acquire_or_proceed().await.unwrap_err();
    assert_eq!(refused.status(), Some(Status::NotPermitted), "{refused}");
}

#[test]
fn a_dump_ends_when_the_token_that_asked_for_it_is_revoked() {
    let mut guarded = Guarded::start("anonymous = 'none'\nnetworks = ['127.0.0.0/8 none']");
    let secret = guarded.create("web", &["--rights", "read,acquire"]);
    let mut caller = guarded.from("127.0.0.1");
    assert_eq!(show(&mut caller, secret.as_bytes()).status, OK);
    // More than server and kernel keep for a client that reads nothing.
    let name = |number: u32| [&number.to_be_bytes()[..], &[b'n'; 60_000]].concat();
    for number in 0..NAMES {
        assert_eq!(caller.wire.acquire(&name(number), 1, 1).status, OK);
    }
    caller.wire.send(&frame(DUMP, *b"dump", &[]));
    assert!(token(&guarded.tokens(), &["revoke", "web"]).status.success());
    guarded.reload();
    let mut entries = 0;
    while let Ok(answer) = caller.wire.try_answer() {
        assert_eq!((answer.opcode, &answer.opaque, answer.status), (DUMP, b"dump", OK));
        assert!(!answer.body.is_empty(), "the Dump is complete");
        entries += 1;
    }
    assert!(caller.wire.is_closed(), "after {entries} of {NAMES} names");
}

#[test]
fn an_expired_token_loses_its_rights_without_a_reload() {
    let mut guarded = Guarded::start("networks = ['127.0.0.0/8 none']");
    let secret = guarded.create("short", &["--rights", "acquire", "--expires-in", "5"]);
    let [mut caller, mut waiting] = [(); 2].map(|()| {
        let mut caller = guarded.from("127.0.0.1");
        assert_eq!(show(&mut caller, secret.as_bytes()).status, OK);
        caller
    });
    let held = caller.take(one_of(1, b"held"));
    let queued = waiting.want(one_of(1, b"held"), LONG);
    let deadline = Instant::now() + PATIENCE;
    while acquire(&mut caller, b"x") != NOT_PERMITTED {
        assert!(Instant::now() < deadline, "it does not expire");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(waiting.answer(queued).status, Status::Canceled.code(), "it no longer waits");
    assert_eq!(caller.ask(&Extended::KeepAlive).token_refusal(), Some(TokenRefusal::Expired));
    assert_eq!(caller.give_back(held.grant), OK);
    let answer = show(&mut caller, secret.as_bytes());
    assert_eq!(
        (answer.status, &answer.body[..]),
        (NOT_PERMITTED, &b"Not permitted: the token has expired"[..])
    );
    let mut command = Command::new(SIGNALBOX);
    command.args(["stats", "--server", &guarded.daemon.address("counter").to_string()]);
    command.env("SIGNALBOX_TOKEN", &secret);
    let output = outcome(command);
    assert!(stderr(&output).contains("the token has expired"), "{}", stderr(&output));
}

#[test]
fn a_token_over_a_plain_connection_from_another_machine_is_refused_unless_that_is_allowed() {
    let mut guarded = Guarded::start("anonymous = 'none'");
    let secret = guarded.create("web", &["--rights", "acquire"]);
    // Version 2 of the PROXY protocol, TCP over IPv4, from 192.0.2.7.
    let mut header = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c".to_vec();
    header.extend([192, 0, 2, 7, 192, 0, 2, 1, 0x12, 0x34, 0x2b, 0xcf]);
    let mut accepted = None;
    for is_allowed in [false, true, false] {
        let access = format!("anonymous = 'none'\ntokens_over_plain = {is_allowed}");
        guarded.file.write(&Guarded::config(&guarded.file, &access));
        guarded.reload();
        let mut caller = guarded.from(PROXY);
        caller.wire.send(&header);
        let expected = if is_allowed { OK } else { NOT_PERMITTED };
        assert_eq!(show(&mut caller, secret.as_bytes()).status, expected);
        assert_eq!(acquire(&mut caller, b"x"), expected);
        if is_allowed {
            accepted = Some(caller);
        }
    }
    let mut accepted = accepted.expect("the token was accepted once");
    assert_eq!(acquire(&mut accepted, b"x"), NOT_PERMITTED, "a reload decides for open connections too");
}

/// The server remembers 256 refused clients for a minute.
#[test]
fn refusals_of_more_clients_than_the_server_remembers_are_in_the_log_once_in_a_while() {
    let mut guarded = Guarded::start("anonymous = 'none'\nnetworks = ['127.0.0.0/8 none']");
    let mut refuse = |address: String| assert_eq!(get(&mut guarded.from(&address), b"x"), NOT_PERMITTED);
    (0..=u8::MAX).for_each(|client| refuse(format!("127.0.1.{client}")));
    (1..=3).for_each(|client| refuse(format!("127.0.2.{client}")));
    // A client that is remembered is in the log already.
    refuse("127.0.1.1".to_owned());
    guarded.daemon.signal(Signal::SIGTERM);
    assert_eq!(guarded.daemon.exit_status().code(), Some(0));
    let logged = guarded.daemon.lines_with("a client is refused: Not permitted");
    assert_eq!(logged.len(), 257);
    let further = &logged[256];
    assert!(text(further, "client").starts_with("127.0.2.1:"), "{further}");
    assert_eq!(text(further, "operation"), "Get");
    let further = guarded.daemon.lines_with("more clients are refused than are remembered");
    assert_eq!(further.len(), 1, "the further ones came within 10 s: {further:?}");
}

#[test]
fn administrative_changes_are_in_the_audit_log_also_after_it_was_moved() {
    let mut guarded = Guarded::start("networks = ['127.0.0.2 read']");
    let secret = guarded.create("operator", &["--rights", "all"]);
    let mut operator = guarded.from("127.0.0.1");
    assert_eq!(show(&mut operator, secret.as_bytes()).status, OK);
    let declarations = vec![Declaration { name: b"gpu", capacity: 2, numbered: false, label: b"" }];
    let declare = Operation::Declare { if_exists: IfExists::Fail, declarations };
    assert_eq!(operator.change(declare.clone()).status, OK);
    assert_eq!(guarded.from("127.0.0.2").change(declare).status, NOT_PERMITTED);
    let lines = guarded.audit();
    let find = |outcome: &str| {
        let operation = "declare semaphore \"gpu\" with capacity 2";
        lines.iter().find(|line| line["operation"] == operation && line["outcome"] == outcome)
    };
    let done = find("done").unwrap_or_else(|| panic!("{lines:?}"));
    assert_eq!(done["identity"], "token:operator");
    assert_eq!(done["target"], "semaphore \"gpu\"");
    assert!(done["client"].as_str().unwrap().starts_with("127.0.0.1:") && done["time"].is_string());
    let refused = find("refused").unwrap_or_else(|| panic!("{lines:?}"));
    assert!(refused["client"].as_str().unwrap().starts_with("127.0.0.2:"));
    assert_eq!(refused["reason"], "not_permitted");
    let log = guarded.file.directory().join("audit.log");
    std::fs::rename(&log, log.with_extension("1")).unwrap();
    guarded.reload();
    assert!(guarded.audit().iter().any(|line| line["operation"] == "reload"));
    assert!(!std::fs::read_to_string(log.with_extension("1")).unwrap().contains(&secret));
}

#[test]
fn the_audit_log_has_the_amounts_and_slots_of_each_change() {
    let mut guarded = Guarded::start("networks = ['127.0.0.2 read']");
    let (name, expected) = (&b"gpu"[..], None);
    let (none, grace) = (Milliseconds(0), Milliseconds(5_000));
    let (first, last) = ("2001:db8::1".parse().unwrap(), "2001:db8::9".parse().unwrap());
    let declare = |declaration| {
        let (if_exists, declarations) = (IfExists::Set, vec![declaration]);
        Operation::Declare { if_exists, declarations }
    };
    let resize = |how| Operation::Resize { expected, how, name };
    let service = |how| Operation::ChangeService { expected, how, name };
    let remove = |how| Operation::Remove { expected, how, name };
    let revoke = |what, grace| Operation::Revoke { what, grace };
    let gpu = Declaration { name, capacity: 4, numbered: true, label: b"" };
    let db = Declaration { name: b"db", capacity: 80, numbered: false, label: b"" };
    let (gpu_too, db_too) =
        (declare(gpu).to_string(), "declare semaphore \"db\" with capacity 80, or change it");
    let changes = [
        (declare(gpu), "declare semaphore \"gpu\" with capacity 4 and numbered slots, or change it"),
        (resize(Resizing::To(9)), "resize semaphore \"gpu\" to 9"),
        (resize(Resizing::GrowBy(2)), "resize semaphore \"gpu\" by +2"),
        (resize(Resizing::ShrinkBy(3)), "resize semaphore \"gpu\" by -3"),
        (service(ServiceChange::SlotOut(3)), "take slot 3 of semaphore \"gpu\" out of service"),
        (service(ServiceChange::SlotIn(3)), "put slot 3 of semaphore \"gpu\" back into service"),
        (service(ServiceChange::Pause), "pause semaphore \"gpu\""),
        (service(ServiceChange::Resume), "resume semaphore \"gpu\""),
        (revoke(Revocation::Grant(GrantId(7)), none), "revoke grant 7"),
        (
            revoke(Revocation::Session(SessionId::new(9)), grace),
            "revoke session 9 with a grace period of 5 s",
        ),
        (
            revoke(Revocation::Addresses(AddressRange { first, last }), grace),
            "revoke the leased sessions of 2001:db8::1 to 2001:db8::9 with a grace period of 5 s",
        ),
        (
            revoke(Revocation::Identity(b"token:web"), grace),
            "revoke the leased sessions of \"token:web\" with a grace period of 5 s",
        ),
        (remove(Removal::WithLastHolder), "remove semaphore \"gpu\" with its last holder"),
        (remove(Removal::Now { grace }), "remove semaphore \"gpu\" now with a grace period of 5 s"),
        (remove(Removal::Now { grace: none }), "remove semaphore \"gpu\" now"),
        (remove(Removal::IfIdle), "remove semaphore \"gpu\""),
    ];
    let both = Operation::Declare { if_exists: IfExists::Set, declarations: vec![gpu, db] };
    let mut callers = ["127.0.0.1", "127.0.0.2"].map(|address| guarded.from(address));
    for operation in [&both].into_iter().chain(changes.iter().map(|(operation, _)| operation)) {
        let [_, refused] = callers.each_mut().map(|caller| caller.change(operation.clone()).status);
        assert_eq!(refused, NOT_PERMITTED, "{operation}");
    }
    let of_client = |lines: &[Value], address: &str| {
        let is_its =
            |line: &&Value| line["client"].as_str().is_some_and(|client| client.starts_with(address));
        let texts = |line: &Value| ["operation", "target"].map(|key| line[key].as_str().unwrap().to_owned());
        lines.iter().filter(is_its).map(texts).collect::<Vec<_>>()
    };
    let lines = guarded.audit();
    let each = [[&gpu_too[..], "semaphore \"gpu\""], [db_too, "semaphore \"db\""]];
    let made = of_client(&lines, "127.0.0.1:");
    assert_eq!(made[..2], each, "a line for each name");
    let operations: Vec<_> = made[2..].iter().map(|[operation, _]| operation).collect();
    assert_eq!(operations, changes.each_ref().map(|(_, operation)| *operation));
    assert_eq!(of_client(&lines, "127.0.0.2:"), each[..1], "the first, with the same text as what is made");
    guarded.daemon.signal(Signal::SIGTERM);
    assert_eq!(guarded.daemon.exit_status().code(), Some(0));
    let lines = guarded.audit();
    let last = lines.last().unwrap();
    assert_eq!((&last["operation"], &last["reason"]), (&"further requests".into(), &"not_permitted".into()));
    assert_eq!(last["count"], changes.len() + 1, "one for the second name: {last}");
}

#[test]
fn a_reload_of_what_cannot_be_used_is_in_the_audit_log() {
    let mut guarded = Guarded::start("");
    let log = guarded.file.directory().join("audit.log");
    guarded.reload();
    std::fs::rename(&log, log.with_extension("1")).unwrap();
    let refused = |guarded: &Guarded, count: usize, reason: &str| {
        let lines = guarded.audit();
        assert_eq!(lines.len(), count, "{lines:?}");
        let line = &lines[count - 1];
        assert_eq!((&line["operation"], &line["outcome"]), (&"reload".into(), &"refused".into()));
        assert_eq!(line["reason"], reason);
        assert!(line["client"].is_null() && line["identity"].is_null(), "{line}");
    };
    guarded.file.write("counter.enable = 'perhaps'\n");
    guarded.daemon.reload("the configuration is left as it was");
    refused(&guarded, 1, "the configuration cannot be used");
    std::fs::write(guarded.tokens(), "[[token]]\nname = 1\n").unwrap();
    let tls = "[tls]\ncert = '/nonexistent/cert.pem'\nkey = '/nonexistent/key.pem'\n";
    guarded.file.write(&Guarded::config(&guarded.file, tls));
    guarded.reload();
    refused(&guarded, 2, "the files of TLS and the file of tokens cannot be used");
}

#[test]
fn a_bad_file_of_tokens_is_reported_and_the_tokens_before_stay() {
    let mut guarded = Guarded::start("networks = ['127.0.0.0/8 none']");
    let secret = guarded.create("web", &["--rights", "acquire"]);
    std::fs::write(guarded.tokens(), "[[token]]\nname = 1\n").unwrap();
    guarded.daemon.reload("the tokens are left as they were");
    let mut caller = guarded.from("127.0.0.1");
    assert_eq!(show(&mut caller, secret.as_bytes()).status, OK);
    let output = outcome(serve_file_on_any_ports(&guarded.file.path()));
    assert_eq!(output.status.code(), Some(78), "{}", stderr(&output));
    assert!(stderr(&output).contains("tokens.toml"), "{}", stderr(&output));
    // An administrator may have put the token itself into the file.
    std::fs::write(guarded.tokens(), format!("# tokens\n{secret}\n")).unwrap();
    let output = outcome(serve_file_on_any_ports(&guarded.file.path()));
    let message = stderr(&output);
    assert!(message.contains("line 2: ") && !message.contains(&secret[..12]), "{message}");
}

#[test]
fn the_command_line_shows_a_token_of_a_file_or_the_environment_and_not_in_its_arguments() {
    let mut guarded = Guarded::start("networks = ['127.0.0.0/8 none']");
    let secret = guarded.create("web", &["--rights", "all"]);
    let file = guarded.file.directory().join("web.token");
    std::fs::write(&file, format!("{secret}\n")).unwrap();
    let server = guarded.daemon.address("counter").to_string();
    let run = |arguments: &[&str], variables: &[(&str, &str)]| {
        let mut command = Command::new(SIGNALBOX);
        command
            .args(arguments)
            .args(["--server", &server])
            .env_remove("SIGNALBOX_TOKEN")
            .envs(variables.iter().copied());
        outcome(command)
    };
    for arguments in [&["stats"][..], &["dump"], &["sessions"], &["run", "x", "--max", "1", "--", "true"]] {
        let path = file.to_str().unwrap();
        let (placed, rest) = arguments.split_at(1);
        let with_file = [placed, &["--token-file", path], rest];
        let refused = {
            let mut command = Command::new(SIGNALBOX);
            command.args(placed).args(["--server", &server]).args(rest);
            outcome(command)
        };
        assert!(!refused.status.success(), "{arguments:?} without a token");
        let mut command = Command::new(SIGNALBOX);
        command.args(with_file.concat().first()).args(["--server", &server]).args(&with_file.concat()[1..]);
        let output = outcome(command);
        assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
    }
    let output = run(&["stats"], &[("SIGNALBOX_TOKEN", &secret)]);
    assert!(output.status.success(), "{}", stderr(&output));
    let output = run(&["stats"], &[("SIGNALBOX_TOKEN_FILE", ""), ("SIGNALBOX_TOKEN", &secret)]);
    assert!(output.status.success(), "an empty variable counts as not set: {}", stderr(&output));
    let output = run(&["stats"], &[("SIGNALBOX_TOKEN_FILE", "/nonexistent")]);
    assert_eq!(output.status.code(), Some(64), "{}", stderr(&output));
    let arguments = std::fs::read(format!("/proc/{}/cmdline", guarded.daemon.pid())).unwrap();
    assert!(!String::from_utf8_lossy(&arguments).contains("sbx_"));
}

/// An address of this machine that is not loopback; `None` if there is none.
fn address_on_a_network() -> Option<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    // Nothing is sent.
    socket.connect("192.0.2.1:9").ok()?;
    Some(socket.local_addr().ok()?.ip()).filter(|ip| !ip.is_loopback())
}

/// Starts a listener at this address. The thread returns what the peer of the first connection sent before it gave up, and
/// the listener, which stays open until then because a peer may try again.
fn eavesdropper(ip: IpAddr) -> (String, JoinHandle<(String, TcpListener)>) {
    let listener = TcpListener::bind((ip, 0)).unwrap();
    let server = listener.local_addr().unwrap().to_string();
    let received = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut received = Vec::new();
        let _ = stream.read_to_end(&mut received);
        (String::from_utf8_lossy(&received).into_owned(), listener)
    });
    (server, received)
}

#[test]
fn no_command_sends_its_token_in_clear_over_a_network_unless_that_is_allowed() {
    let Some(ip) = address_on_a_network() else { return };
    for (command, is_allowed) in [
        (&["stats"][..], false),
        (&["acquire", "x", "--max", "1", "--lease", "60s"], false),
        (&["bench", "--count", "1", "--warmup", "0"], false),
        (&["stats"], true),
    ] {
        let (server, received) = eavesdropper(ip);
        let mut program = Command::new(SIGNALBOX);
        program.args(command).args(["--server", &server, "--timeout", "5s"]);
        program.args(is_allowed.then_some("--token-over-plain")).env("SIGNALBOX_TOKEN", "sbx_secret");
        let output = outcome(program);
        // In case the command has not connected.
        let _ = TcpStream::connect(&server);
        let (said, (received, _)) = (stderr(&output), received.join().unwrap());
        assert_eq!(received.contains("sbx_secret"), is_allowed, "{command:?}: {said}");
        assert_eq!(said.contains("--token-over-plain"), !is_allowed, "{command:?}: {said}");
    }
}

#[test]
fn the_connections_of_a_bench_show_a_token() {
    let mut guarded = Guarded::start("networks = ['127.0.0.0/8 none']");
    let secret = guarded.create("load", &["--rights", "acquire", "--area", "counter:bench-"]);
    let server = guarded.daemon.address("counter").to_string();
    let bench = |token: &str| {
        let mut command = Command::new(SIGNALBOX);
        command.args(["bench", "-c", "3", "--in-flight", "4", "--count", "1001", "--warmup", "0", "--json"]);
        command.args(["--threads", "2", "--server", &server]).env("SIGNALBOX_TOKEN", token);
        outcome(command)
    };
    let report = |output: &Output| -> Value { serde_json::from_slice(&output.stdout).unwrap() };
    let permitted = bench(&secret);
    assert!(permitted.status.success(), "{}", stderr(&permitted));
    let permitted = report(&permitted);
    assert_eq!((&permitted["answers"], &permitted["failures"]), (&1001.into(), &0.into()), "{permitted}");
    let without = report(&bench(""));
    assert_eq!((&without["answers"], &without["failures"]), (&1001.into(), &1001.into()), "{without}");
    let wrong = bench("sbx_wrong");
    assert!(!wrong.status.success());
    assert!(stderr(&wrong).contains("the token does not have the form of one"), "{}", stderr(&wrong));
}

#[test]
fn programs_with_system_v_semaphores_show_a_token() {
    if !SysvProgram::is_possible() {
        return;
    }
    let mut guarded = Guarded::start("anonymous = 'none'\nnetworks = ['127.0.0.0/8 none']");
    let secret = guarded.create("jobs", &["--rights", "read,acquire", "--area", "sysv"]);
    let acquiring = guarded.create("acquiring", &["--rights", "acquire"]);
    let elsewhere = guarded.create("elsewhere", &["--rights", "all", "--area", "counter"]);
    let file = guarded.file.directory().join("jobs.token");
    std::fs::write(&file, format!("{secret}\n")).unwrap();
    let file = file.to_str().unwrap();
    let server = guarded.daemon.address("counter").to_string();
    let errors = guarded.file.directory().join("errors");
    let preloaded = |variables: &[(&str, &str)]| {
        SysvProgram::preloaded(&server, variables, std::fs::File::create(&errors).unwrap())
    };

    let mut program = SysvProgram::start(&server, &[("SIGNALBOX_TOKEN_FILE", file)]);
    program.make_set(42, 1);
    program.add(-1);
    assert_eq!(program.answer(), "done");
    let mut other = preloaded(&[("SIGNALBOX_TOKEN", &secret)]);
    other.find_set(42);
    assert_eq!(other.value(), "0");

    let (get, denied) = ("outcome(semget(42, 1, 0))", "failed: Permission denied");
    for (variables, expected) in [
        (&[][..], "a program without a token; set SIGNALBOX_TOKEN_FILE to a file with one"),
        (
            &[("SIGNALBOX_TOKEN", "sbx_wrong")],
            "does not accept the token of SIGNALBOX_TOKEN: the token does not have the form of one",
        ),
        (
            &[("SIGNALBOX_TOKEN_FILE", "/nonexistent")],
            "SIGNALBOX_TOKEN_FILE: the file \"/nonexistent\" cannot be read",
        ),
        (&[("SIGNALBOX_TOKEN", &elsewhere)], "the token of SIGNALBOX_TOKEN lacks a right"),
    ] {
        let mut refused = preloaded(variables);
        assert_eq!(refused.ask(get), denied, "{variables:?}");
        assert_eq!(refused.ask(get), denied, "{variables:?}");
        let said = std::fs::read_to_string(&errors).unwrap();
        assert!(said.contains(expected) && said.lines().count() == 1, "{variables:?}: {said}");
        assert!(!said.contains("sbx_"), "{said}");
    }
    // Reading a value needs the other right.
    let mut acquiring = preloaded(&[("SIGNALBOX_TOKEN", &acquiring)]);
    acquiring.find_set(42);
    assert_eq!(acquiring.value(), denied);
    acquiring.add(1);
    assert_eq!(acquiring.answer(), "done");

    assert!(token(&guarded.tokens(), &["revoke", "jobs"]).status.success());
    guarded.reload();
    assert_eq!(program.value(), denied);
    program.add(-1);
    assert_eq!(program.answer(), denied);
    // The file gets another token.
    std::fs::write(file, guarded.create("next", &["--rights", "read,acquire", "--area", "sysv"])).unwrap();
    assert_eq!(program.value(), "1");
    program.add(-1);
    assert_eq!(program.answer(), "done");
}

#[test]
fn the_library_for_system_v_semaphores_sends_no_token_in_clear_over_a_network_unless_that_is_allowed() {
    let Some(ip) = address_on_a_network().filter(|_| SysvProgram::is_possible()) else { return };
    let directory = open_directory();
    let [file, errors] = ["token", "errors"].map(|name| directory.path().join(name));
    std::fs::write(&file, "sbx_secret\n").unwrap();
    let of_file = ("SIGNALBOX_TOKEN_FILE", file.to_str().unwrap());
    let of_variable = ("SIGNALBOX_TOKEN", "sbx_secret");
    for (token, over_plain, is_allowed) in [
        (of_variable, None, false),
        (of_file, None, false),
        (of_file, Some("0"), false),
        (of_file, Some("1"), true),
    ] {
        let (server, received) = eavesdropper(ip);
        let mut variables = vec![token, ("SIGNALBOX_SYSV_TIMEOUT", "500ms")];
        variables.extend(over_plain.map(|value| ("SIGNALBOX_TOKEN_OVER_PLAIN", value)));
        let mut program =
            SysvProgram::preloaded(&server, &variables, std::fs::File::create(&errors).unwrap());
        let answer = program.ask("outcome(semget(42, 1, 0))");
        assert_eq!(answer == "failed: Permission denied", !is_allowed, "{over_plain:?}: {answer}");
        assert!(answer.starts_with("failed: "), "no server answers: {answer}");
        let (received, _) = received.join().unwrap();
        assert_eq!(received.contains("sbx_secret"), is_allowed, "{over_plain:?}: {received}");
        assert_eq!(received.is_empty(), !is_allowed, "{received}");
        let said = std::fs::read_to_string(&errors).unwrap();
        let explained = format!("the token of {}", token.0);
        assert_eq!(said.contains(&explained) && said.contains(&server), !is_allowed, "{said}");
        assert_eq!(said.contains("SIGNALBOX_TOKEN_OVER_PLAIN=1"), !is_allowed, "{said}");
        assert!(said.lines().count() == 1 && !said.contains("sbx_"), "{said}");
    }
}

#[test]
fn sysv_run_hands_its_token_to_the_library() {
    if !SysvProgram::is_possible() {
        return;
    }
    let mut guarded = Guarded::start("networks = ['127.0.0.0/8 none']");
    let secret = guarded.create("jobs", &["--rights", "read,acquire", "--area", "sysv"]);
    std::fs::write(guarded.file.directory().join("jobs.token"), secret).unwrap();
    let server = guarded.daemon.address("counter").to_string();
    let run = |token: &str| {
        let mut command = Command::new(SIGNALBOX);
        command.current_dir(guarded.file.directory()).env("SIGNALBOX_TOKEN_FILE", "/nonexistent");
        command.args(["sysv", "run", "--server", &server, "--keys", "all", "--library"]);
        command.arg(SysvProgram::library()).args(["--token-file", token, "--", "sh", "-c"]);
        command.arg("cd / && exec perl -MIPC::SysV=:all -e 'print defined semget(7, 1, IPC_CREAT | 0600) ? q(made) : $!'");
        outcome(command)
    };
    let made = run("jobs.token");
    assert_eq!((String::from_utf8_lossy(&made.stdout), stderr(&made)), ("made".into(), String::new()));
    let refused = run("missing.token");
    assert_eq!(refused.status.code(), Some(64), "{}", stderr(&refused));
    assert!(stderr(&refused).contains("missing.token\" cannot be read"), "{}", stderr(&refused));
    for option in [None, Some("--token-over-plain")] {
        let mut command = Command::new(SIGNALBOX);
        command.args(["sysv", "run", "--server", &server, "--keys", "all", "--library"]);
        command.arg(SysvProgram::library()).args(option).env("SIGNALBOX_TOKEN", "");
        command.env("SIGNALBOX_TOKEN_FILE", guarded.file.directory().join("jobs.token"));
        command.args(["--", "sh", "-c", "echo $SIGNALBOX_TOKEN_OVER_PLAIN"]);
        let shown = outcome(command);
        let expected = if option.is_some() { "1\n" } else { "\n" };
        assert_eq!(
            (String::from_utf8_lossy(&shown.stdout), stderr(&shown)),
            (expected.into(), String::new())
        );
    }
}

#[test]
fn tokens_are_listed_without_secrets_and_wrong_input_is_explained() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("tokens.toml");
    let created =
        token(&file, &["create", "a", "--rights", "read", "--area", "semaphore:x y", "--expires-in", "1h"]);
    let secret = String::from_utf8(created.stdout).unwrap();
    assert!(secret.starts_with("sbx_") && secret.len() == 86, "{secret}");
    let listed = String::from_utf8(token(&file, &["list", "--json"]).stdout).unwrap();
    let line: Value = serde_json::from_str(&listed).unwrap();
    assert_eq!((&line["name"], &line["areas"][0]), (&"a".into(), &"semaphore:x y".into()));
    assert_eq!(line["expires_at"].as_u64().unwrap() - line["created_at"].as_u64().unwrap(), 3600);
    assert!(
        !listed.contains(&secret[21..40])
            && !std::fs::read_to_string(&file).unwrap().contains(&secret[21..40])
    );
    for (arguments, expected) in [
        (&["create", "a", "--rights", "read"][..], "there is a token \"a\" already"),
        (&["create", "b b", "--rights", "read"], "the name \"b b\" must be"),
        (&["create", "b", "--rights", "root"], "\"root\" is not a right"),
        (&["create", "b", "--rights", "none"], "permits nothing"),
        (&["create", "b", "--rights", "read", "--area", "queue"], "\"queue\" is not an area"),
        (&["revoke", "b"], "there is no token \"b\""),
    ] {
        let output = token(&file, arguments);
        assert!(!output.status.success() && stderr(&output).contains(expected), "{}", stderr(&output));
    }
}

#[test]
fn both_secrets_of_a_token_that_is_rotated_are_valid_until_the_overlap_ends_or_one_is_revoked() {
    let mut guarded = Guarded::start("anonymous = 'none'\nnetworks = ['127.0.0.0/8 none']");
    let old = guarded.create("web", &["--rights", "read,acquire", "--area", "counter:web/"]);
    let mut before = guarded.from("127.0.0.1");
    assert_eq!(show(&mut before, old.as_bytes()).status, OK);
    let tokens = guarded.tokens();
    let run = |arguments: &[&str]| {
        let output = token(&tokens, arguments);
        assert!(output.status.success(), "{}", stderr(&output));
        String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
    };
    let listed = || {
        let lines = run(&["list", "--json"]);
        let entries = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        entries.filter(|entry| entry["name"] == "web").collect::<Vec<_>>()
    };
    let life = |entry: &Value| entry["expires_at"].as_u64().unwrap() - entry["created_at"].as_u64().unwrap();
    assert_eq!(life(&listed()[0]), 365 * 24 * 3600, "tokens have an end");
    let new = run(&["rotate", "web", "--overlap", "24h", "--expires-in", "never"]);
    guarded.reload();
    let entries = listed();
    assert!(life(&entries[0]) <= 25 * 3600, "{entries:?}");
    assert_eq!((&entries[1]["expires_at"], &entries[1]["rights"]), (&Value::Null, &entries[0]["rights"]));
    assert_eq!(acquire(&mut before, b"web/before"), OK);
    for secret in [&old, &new] {
        let mut caller = guarded.from("127.0.0.1");
        assert_eq!(show(&mut caller, secret.as_bytes()).status, OK);
        assert_eq!((acquire(&mut caller, b"web/1"), acquire(&mut caller, b"other")), (OK, NOT_PERMITTED));
    }
    let third = token(&tokens, &["rotate", "web"]);
    assert!(stderr(&third).contains("has two secrets that are valid already"), "{}", stderr(&third));
    run(&["revoke", "web", "--id", entries[0]["id"].as_str().unwrap()]);
    guarded.reload();
    let mut caller = guarded.from("127.0.0.1");
    assert_eq!([&old, &new].map(|secret| show(&mut caller, secret.as_bytes()).status), [NOT_PERMITTED, OK]);
    assert_eq!(acquire(&mut before, b"web/2"), NOT_PERMITTED);
    assert!(!token(&tokens, &["rotate", "none"]).status.success());
}

#[test]
fn a_server_that_everybody_can_use_warns_once() {
    const WARNING: &str = "every client that reaches this server";
    for (lines, is_warned) in [
        ("bind_ip = '0.0.0.0'", true),
        ("bind_ip = '127.0.0.1'", false),
        ("bind_ip = '0.0.0.0'\naccess.anonymous = 'read'", false),
        ("bind_ip = '0.0.0.0'\naccess.networks = ['10.0.0.0/8 all']", true),
        ("bind_ip = '0.0.0.0'\naccess.networks = ['0.0.0.0/0 none', '::/0 none']", false),
    ] {
        let file = ConfigFile::toml(&format!("{lines}\n"));
        let mut daemon = Daemon::spawn(serve_file_on_any_ports(&file.path()));
        daemon.ready();
        assert_eq!(daemon.lines_with(WARNING).len(), usize::from(is_warned), "{lines}");
    }
}

/// /proc shows root as the owner of a process that dumps no core. The memory of every server has keys of sessions.
#[test]
fn core_dumps_are_switched_off() {
    const NOBODY: u32 = 65_534;
    let file = ConfigFile::toml("");
    // The folder of the build may be closed to other users. Another process makes the copy: if this one wrote it while another
    // test starts a process, that process would have it open, and it could not be executed.
    let program = file.directory().join("signalbox");
    assert!(Command::new("cp").arg(SIGNALBOX).arg(&program).status().unwrap().success());
    let as_nobody = |mut command: Command| {
        if geteuid().is_root() {
            command.uid(NOBODY).gid(NOBODY);
        }
        command
    };
    let owner = |pid: &str| std::fs::metadata(format!("/proc/{pid}/environ")).unwrap().uid();
    let mut server = Command::new(&program);
    server.args(serve_file_on_any_ports(&file.path()).get_args());
    let mut daemon = Daemon::spawn(as_nobody(server));
    daemon.ready();
    assert_eq!(owner(&daemon.pid().to_string()), 0, "the server");
    // Commands have the keys of their sessions too, and the programs that they run are not affected.
    let mut run = Command::new(&program);
    run.args(["run", "job", "--max", "1", "--", "sleep", "1000"])
        .env("SIGNALBOX_SERVER", daemon.address("counter").to_string());
    let mut run = as_nobody(run).spawn().unwrap();
    let children = format!("/proc/{0}/task/{0}/children", run.id());
    let mut child = String::new();
    eventually("the command runs", || {
        child = std::fs::read_to_string(&children).unwrap().trim().to_owned();
        let name = std::fs::read_to_string(format!("/proc/{child}/comm")).unwrap_or_default();
        name == "sleep\n"
    });
    assert_eq!(owner(&run.id().to_string()), 0, "the command");
    assert_ne!(owner(&child), 0, "what it runs");
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(run.id().cast_signed()), Signal::SIGTERM).unwrap();
    run.wait().unwrap();
}

#[test]
fn a_link_to_the_file_of_tokens_stays() {
    let directory = tempfile::tempdir().unwrap();
    let [deployed, link] = ["deployed.toml", "tokens.toml"].map(|name| directory.path().join(name));
    assert!(token(&deployed, &["create", "web", "--rights", "read"]).status.success());
    std::os::unix::fs::symlink("deployed.toml", &link).unwrap();
    assert!(token(&link, &["revoke", "web"]).status.success());
    assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
    let listed = token(&deployed, &["list", "--json"]);
    assert_eq!(
        (listed.status.code(), &*listed.stdout),
        (Some(0), &b""[..]),
        "the token is not in the target"
    );

    std::fs::remove_file(&deployed).unwrap();
    let output = token(&link, &["create", "web", "--rights", "read"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("is a symbolic link to a file that does not exist"), "{output:?}");
}

#[test]
fn a_new_file_of_tokens_may_be_named_without_a_folder() {
    let directory = tempfile::tempdir().unwrap();
    let mut command = Command::new(SIGNALBOX);
    command.args(["token", "create", "web", "--rights", "read", "--file", "tokens.toml"]);
    command.current_dir(directory.path());
    assert!(outcome(command).status.success());
    assert!(token(&directory.path().join("tokens.toml"), &["list"]).status.success());
}

#[test]
fn a_file_of_tokens_that_is_mounted_by_itself_is_refused() {
    if !works("unshare", &["--mount", "true"]) {
        skipped("mounts need root");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("of tokens.toml");
    assert!(token(&file, &["create", "web", "--rights", "read"]).status.success());
    let mut command = Command::new("unshare");
    command.args([
        "--mount",
        "sh",
        "-c",
        "mount --bind \"$1\" \"$1\" && exec \"$2\" token revoke web --file \"$1\"",
        "sh",
    ]);
    let output = command.arg(&file).arg(SIGNALBOX).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(stderr(&output).contains("the file of tokens is mounted by itself"), "{output:?}");
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 2, "only the lock file is beside it");
}
