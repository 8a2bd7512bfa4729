"""RPC over gRPC and Connect: methods, dispatcher, codecs and both protocols."""
