"""vLLM classes as Spyre needs them: configuration, scheduler, worker, runner, layers."""
