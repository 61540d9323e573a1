use signalbox_model::kubernetes::is_of_service;

#[test]
fn variables_of_a_service_are_found() {
    for (name, value) in [
        ("SIGNALBOX_SYSV_SERVICE_HOST", "10.0.0.1"),
        ("SIGNALBOX_SYSV_SERVICE_PORT", "11216"),
        ("SIGNALBOX_SYSV_SERVICE_PORT_HTTP", "11217"),
        ("SIGNALBOX_SYSV_PORT", "tcp://10.0.0.1:11216"),
        ("SIGNALBOX_SYSV_PORT_11216_TCP", "tcp://10.0.0.1:11216"),
        ("SIGNALBOX_SYSV_PORT_11216_TCP_PROTO", "tcp"),
        ("SIGNALBOX_SYSV_PORT_11216_TCP_PORT", "11216"),
        ("SIGNALBOX_SYSV_B_PORT_53_UDP_ADDR", "10.0.0.1"),
    ] {
        assert!(is_of_service(name, value), "{name}");
    }
    for (name, value) in [
        ("SIGNALBOX_CONFIG_COUNTER_PORT", "11215"),
        ("SIGNALBOX_CONFIG_PORT_X_TCP", "1"),
        ("SIGNALBOX_CONFIG_PORT_1", "1"),
        ("SIGNALBOX_SYSV_SERVER", "tcp://10.0.0.1:11216"),
        ("SIGNALBOX_SYSV_SERVICE", "x"),
    ] {
        assert!(!is_of_service(name, value), "{name}");
    }
}
