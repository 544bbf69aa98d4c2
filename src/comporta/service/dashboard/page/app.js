new EventSource("/v1/dashboard/stream");
