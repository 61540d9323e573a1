//! TLS and users, against a real etcd.

use signalbox_cluster::coordinator::{CallError, Coordinator};
use signalbox_cluster::etcd::{EtcdClient, Settings, Tls, User};

use crate::support::calls::{always, one, put, refused};
use crate::support::etcd::RealEtcd;
use crate::support::etcd::real::{Certificates, certificates};

fn as_user(etcd: &RealEtcd, name: &str, password: &str) -> EtcdClient {
    let user = User { name: name.to_owned(), password: password.to_owned() };
    EtcdClient::new(&Settings { user: Some(user), ..etcd.settings() }).unwrap()
}

/// Makes users: `root`, and `signalbox`, which may use keys below `ours/` only. All have the password `secret`.
fn enable_users(etcd: &RealEtcd) {
    etcd.control(&["user", "add", "root:secret"]);
    etcd.control(&["user", "grant-role", "root", "root"]);
    etcd.control(&["user", "add", "signalbox:secret"]);
    etcd.control(&["role", "add", "ours"]);
    etcd.control(&["role", "grant-permission", "ours", "readwrite", "ours/", "--prefix=true"]);
    etcd.control(&["user", "grant-role", "signalbox", "ours"]);
    etcd.control(&["auth", "enable"]);
}

/// Ends the validity of all tokens of the user.
fn end_tokens(etcd: &RealEtcd, password: &str) {
    let arguments = ["--user=root:secret", "user", "passwd", "signalbox", "--interactive=false"];
    etcd.control_with_input(&arguments, password);
}

#[test]
fn tls_needs_the_authority_and_a_certificate_of_the_client() {
    let Some(etcd) = RealEtcd::start_with(1, Some(certificates), &[]) else { return };
    etcd.client().transact(&always(vec![put("a", b"1")])).unwrap();
    let Certificates { ca, client, server } = etcd.certificates();
    let mixed_up = Some(Tls { ca: ca.clone(), identity: Some((client.0.clone(), server.1.clone())) });
    let mixed_up = EtcdClient::new(&Settings { tls: mixed_up, ..etcd.settings() }).unwrap_err();
    assert!(mixed_up.to_string().contains("the key must fit the certificate"), "{mixed_up}");
    let with = |tls| EtcdClient::new(&Settings { tls, ..etcd.settings() }).unwrap();
    let anonymous = with(Some(Tls { ca: ca.clone(), identity: None })).range(&one("a")).unwrap_err();
    assert!(matches!(anonymous, CallError::Unanswered(_)), "{anonymous:?}");
    // The certificate of another party instead of the authority's.
    let stranger = with(Some(Tls { ca: client.0.clone(), identity: Some(client.clone()) }));
    let error = { stranger }.range(&one("a")).unwrap_err();
    assert!(matches!(&error, CallError::Unanswered(why) if why.contains("certificate")), "{error:?}");
    let plain = etcd.endpoints().iter().map(|url| url.replace("https", "http")).collect();
    let plain = Settings { endpoints: plain, tls: None, ..etcd.settings() };
    let plain = EtcdClient::new(&plain).unwrap().range(&one("a")).unwrap_err();
    assert!(matches!(plain, CallError::Unanswered(_)), "{plain:?}");
}

#[test]
fn a_user_has_what_its_roles_permit() {
    let Some(etcd) = RealEtcd::start(1) else { return };
    // Before users are enabled, a user is not needed and does no harm.
    let mut early = as_user(&etcd, "signalbox", "secret");
    early.transact(&always(vec![put("ours/a", b"0")])).unwrap();
    enable_users(&etcd);
    early.transact(&always(vec![put("ours/a", b"1")])).unwrap();
    let mut client = as_user(&etcd, "signalbox", "secret");
    client.transact(&always(vec![put("ours/a", b"2")])).unwrap();
    refused(client.transact(&always(vec![put("theirs", b"1")])), "grant-permission");
    refused(client.range(&one("theirs")), "grant-permission");
    refused(as_user(&etcd, "signalbox", "wrong").range(&one("ours/a")), "correct the user");
    refused(as_user(&etcd, "nobody", "secret").range(&one("ours/a")), "correct the user");
    refused(etcd.client().range(&one("ours/a")), "name a user");
    assert_eq!(client.range(&one("ours/a")).unwrap().entries[0].value, b"2");
}

#[test]
fn a_token_that_is_not_valid_any_more_is_renewed_within_the_call() {
    let Some(mut etcd) = RealEtcd::start(1) else { return };
    enable_users(&etcd);
    let mut client = as_user(&etcd, "signalbox", "secret");
    client.range(&one("ours/a")).unwrap();
    end_tokens(&etcd, "secret");
    client.transact(&always(vec![put("ours/a", b"1")])).unwrap();
    end_tokens(&etcd, "secret");
    client.range(&one("ours/a")).unwrap();
    // etcd keeps tokens in memory.
    etcd.kill(0);
    etcd.start_again(0);
    let mut attempts = (0..3).map(|_| client.range(&one("ours/a")));
    assert!(attempts.any(|answer| answer.is_ok()), "one attempt finds that the connection is lost");
    end_tokens(&etcd, "another");
    refused(client.range(&one("ours/a")), "correct the user");
}
